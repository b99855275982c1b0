"""Draws the Grafana dashboard from what a Prometheus has recorded, and names the panels that nothing was recorded for.

python tests/perf/draw_dashboard.py --prometheus http://127.0.0.1:9090 --minutes 5 -o dashboard.png
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

DASHBOARD = Path(__file__).resolve().parents[2] / "docker" / "grafana" / "dashboards" / "triton-speech.json"
COLUMNS, CELL_HEIGHT = 24, 0.42
RATE_INTERVAL = "20s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL", help="(%(default)s)")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (%(default)g)")
    parser.add_argument("--until", type=float, default=0.0, help="so many minutes ago (%(default)g)")
    parser.add_argument("-o", "--output", type=Path, default=Path("dashboard.png"), help="(%(default)s)")
    args = parser.parse_args()
    end = time.time() - 60 * args.until
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = pyplot.figure(figsize=(16, height * CELL_HEIGHT))
    for panel in panels:
        at = panel["gridPos"]
        box = (at["x"] / COLUMNS, 1 - (at["y"] + at["h"]) / height, at["w"] / COLUMNS, at["h"] / height)
        axes = figure.add_axes((box[0] + 0.035, box[1] + 0.012, box[2] - 0.045, box[3] - 0.03))
        series = [one for target in panel["targets"] for one in ask(args.prometheus, target, end, args.minutes)]
        draw(axes, panel, series)
        if panel["type"] != "stat":
            axes.set_xlim(-args.minutes, 0)
        if not series:
            print(f"nothing recorded: {panel['title']}")
    figure.savefig(args.output, dpi=70)
    print(args.output)


def ask(
    prometheus: str, target: dict[str, Any], end: float, minutes: float
) -> list[tuple[str, list[float], list[float]]]:
    """Legend, minutes before the end and values of each series of a panel's target."""
    expression = target["expr"].replace("$__rate_interval", RATE_INTERVAL).replace("$instance", ".*")
    query = {"query": expression, "start": end - 60 * minutes, "end": end, "step": 1}
    with urllib.request.urlopen(
        f"{prometheus}/api/v1/query_range?{urllib.parse.urlencode(query)}", timeout=60
    ) as answer:
        result = json.load(answer)["data"]["result"]
    series = []
    for one in result:
        labels = one["metric"]
        legend = re.sub(r"{{(\w+)}}", lambda match, labels=labels: labels.get(match[1], ""), target["legendFormat"])
        known = {round(when - end): float(value) for when, value in one["values"] if value != "NaN"}
        if known:
            # A second without a value is a gap in the line.
            seconds = range(min(known), max(known) + 1)
            series.append((legend, [s / 60 for s in seconds], [known.get(s, math.nan) for s in seconds]))
    return series


def draw(axes: Any, panel: dict[str, Any], series: list[tuple[str, list[float], list[float]]]) -> None:
    axes.set_title(panel["title"], fontsize=10, loc="left")
    if panel["type"] == "stat":
        axes.axis("off")
        text = "   ".join(f"{legend} {values[-1]:.3g}" for legend, _, values in series)
        axes.text(0.0, 0.4, text or "no data", fontsize=14)
        return
    if not series:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", transform=axes.transAxes, color="grey")
    for legend, when, values in series:
        axes.plot(when, values, label=legend, linewidth=1)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.set_ylabel("" if unit in ("short", "none") else unit, fontsize=7)
    axes.grid(alpha=0.3)
    if series:
        axes.set_ylim(top=1.35 * axes.get_ylim()[1])  # the legend's place
        axes.legend(fontsize=7, loc="upper left", ncols=2, frameon=False, columnspacing=1)


if __name__ == "__main__":
    main()
