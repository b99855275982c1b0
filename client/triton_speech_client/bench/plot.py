"""The figures of several levels of load as a picture. Importing this needs matplotlib, which has its own extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from triton_speech_client.bench.summary import Figures


def write_plot(path: Path, rows: Sequence[Figures], title: str) -> None:
    """Writes a PNG: first audio, real-time factor, audio per second, clean share, each over the load."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    (first, factor), (speed, clean) = figure.subplots(2, 2)
    load = [row.level for row in rows]
    for name, style in (("p50", "o-"), ("p90", "s--"), ("p99", "^:")):
        first.plot(load, [getattr(row, f"first_audio_{name}_ms") for row in rows], style, label=name)
        factor.plot(load, [getattr(row, f"rtf_{name}") for row in rows], style, label=name)
    speed.plot(load, [row.audio_s_per_s for row in rows], "o-")
    clean.plot(load, [100 * row.clean_share for row in rows], "o-")
    factor.axhline(1.0, color="grey", linewidth=0.8)
    words = ("first audio, ms", "real-time factor", "audio-s/s", "clean streams, %")
    for axes, label in zip((first, factor, speed, clean), words, strict=True):
        axes.set_xlabel("requests/s" if rows[0].mode == "rate" else "streams at once")
        axes.set_ylabel(label)
        axes.set_xticks(load)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    first.legend()
    clean.set_ylim(0, 105)
    figure.suptitle(title)
    figure.savefig(path, format="png", dpi=120)
