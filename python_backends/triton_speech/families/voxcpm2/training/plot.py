"""The curves of a run as a picture. Importing this needs matplotlib."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

NOT_LOSSES = {"step", "seconds", "gradient"}


def write_plot(state: Path, path: Path) -> None:
    """Writes a PNG: the losses of each stage in ``state``, by step and on a scale of powers.

    Raises:
        FileNotFoundError: no stage has written a curve.
    """
    curves = sorted(state.glob("*.jsonl"))
    if not curves:
        raise FileNotFoundError(f"{state} has no curves: no stage has been trained")
    figure = Figure(figsize=(5 * len(curves), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        points = [json.loads(line) for line in curve.read_text(encoding="utf-8").splitlines()]
        for name in [name for name in points[0] if name not in NOT_LOSSES]:
            axes.plot([point["step"] for point in points], [point[name] for point in points], label=name)
        axes.set_title(f"{curve.stem}, {points[-1]['seconds']:.0f} s")
        axes.set_xlabel("step")
        axes.set_yscale("log")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    figure.savefig(path, format="png", dpi=100)
