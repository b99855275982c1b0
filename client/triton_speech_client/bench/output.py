"""The figures as a table, JSON and CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from triton_speech_client.bench.load import Run
from triton_speech_client.bench.streams import DEFINITIONS
from triton_speech_client.bench.summary import Figures, counted


def table(rows: Sequence[Figures]) -> str:
    """Markdown, one line for each level of load."""
    times = "first audio p50 / p90 / p99 | RTF p50 / p90 / p99 | worst underrun"
    titles = f"{rows[0].mode} | requests (failed) | {times} | clean | audio-s/s | requests/s | late"
    lines = [f"| {titles} |", "|---" * 9 + "|"]
    for row in rows:
        first = " / ".join(
            f"{ms:.0f}" for ms in (row.first_audio_p50_ms, row.first_audio_p90_ms, row.first_audio_p99_ms)
        )
        factor = " / ".join(f"{value:.2f}" for value in (row.rtf_p50, row.rtf_p90, row.rtf_p99))
        cells = [
            f"{row.level:g}{'/s' if row.mode == 'rate' else ''}",
            f"{row.requests} ({row.failed})",
            f"{first} ms",
            factor,
            f"{row.underrun_worst_ms:.0f} ms",
            f"{100 * row.clean_share:.0f} %",
            f"{row.audio_s_per_s:.2f}",
            f"{row.requests_per_s:.2f}",
            f"{row.late_p99_ms:.1f} ms",
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("nan", "-"))
    return "\n".join(lines)


def remarks(rows: Sequence[Figures]) -> list[str]:
    """What a reader of the table must know besides: failures by reason, and load that was no load."""
    lines = []
    for row in rows:
        where = f"{row.mode} {row.level:g}"
        lines += [f"{where}: {count} failed: {reason}" for reason, count in row.failures.items()]
        if row.cut:
            lines.append(f"{where}: {row.cut} of {row.requests} were cut at the limit of their length")
        if not row.requests:
            lines.append(f"{where}: no request was due within the window: make --duration longer")
        if row.late_p99_ms > 10:
            lines.append(
                f"{where}: sent up to {row.late_p99_ms:.0f} ms late (p99): use more --processes, on free cores"
            )
    return lines


def write_json(path: Path, settings: Mapping[str, Any], rows: Sequence[Figures]) -> None:
    """Settings, definitions and figures; what there is nothing to tell of is null."""
    figures = [
        {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in asdict(row).items()} for row in rows
    ]
    content = {"settings": dict(settings), "definitions": DEFINITIONS, "levels": figures}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_csv(path: Path, runs: Sequence[tuple[str, float, Run]]) -> None:
    """One line for each request that counts; ``due_s`` counts from the beginning of its level's window."""
    names = (
        "mode level due_s late_ms first_audio_ms rtf underrun_ms audio_s seed finish_reason failure failure_text text"
    )
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names.split())
        for mode, level, run in runs:
            for one in sorted(counted(run), key=lambda played: played.due):
                times = ["", "", "", ""]
                if one.ok:
                    times = [
                        f"{1000 * one.first_audio:.3f}",
                        f"{one.real_time_factor:.4f}",
                        f"{1000 * one.underrun:.3f}",
                        f"{one.seconds:.4f}",
                    ]
                sent = [f"{one.due - run.begin:.4f}", f"{1000 * (one.sent - one.due):.3f}"]
                what = [one.job.seed, one.finish_reason, one.failure, one.failure_text, one.job.text]
                writer.writerow([mode, f"{level:g}", *sent, *times, *what])
