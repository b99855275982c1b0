"""From requests to figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from triton_speech_client.bench.load import Run
from triton_speech_client.bench.streams import Played


@dataclass(frozen=True)
class Figures:
    """What a level of load came to; times in milliseconds. NaN where there is nothing to tell."""

    mode: str
    """``concurrency`` or ``rate``."""
    level: float
    requests: int
    """Due within the window, those that failed included."""
    failed: int
    cut: int
    """Ended by the limit of their length."""
    first_audio_p50_ms: float
    first_audio_p90_ms: float
    first_audio_p99_ms: float
    rtf_p50: float
    rtf_p90: float
    rtf_p99: float
    underrun_p99_ms: float
    underrun_worst_ms: float
    clean_share: float
    audio_s_per_s: float
    requests_per_s: float
    late_p99_ms: float
    failures: dict[str, int] = field(default_factory=dict)
    """By kind of error, with the first text of each."""


def counted(run: Run) -> list[Played]:
    """The requests that were due within the window."""
    return [one for one in run.played if run.begin <= one.due < run.end]


def figures(mode: str, level: float, run: Run, player_buffer: float = 0.0) -> Figures:
    """The figures of one level; ``player_buffer`` is in seconds."""
    every = counted(run)
    well = [one for one in every if one.ok]
    window = run.end - run.begin
    first = [1000 * one.first_audio for one in well]
    factor = [one.real_time_factor for one in well]
    underrun = [1000 * one.underrun for one in well]
    arrived = sum(s for one in run.played for at, s in one.arrivals if run.begin <= at < run.end)
    ended = sum(one.ok and run.begin <= one.end < run.end for one in run.played)
    clean = sum(one.underrun <= player_buffer for one in well)
    return Figures(
        mode=mode,
        level=level,
        requests=len(every),
        failed=len(every) - len(well),
        cut=sum(one.finish_reason == "length" for one in well),
        first_audio_p50_ms=percentile(first, 0.5),
        first_audio_p90_ms=percentile(first, 0.9),
        first_audio_p99_ms=percentile(first, 0.99),
        rtf_p50=percentile(factor, 0.5),
        rtf_p90=percentile(factor, 0.9),
        rtf_p99=percentile(factor, 0.99),
        underrun_p99_ms=percentile(underrun, 0.99),
        underrun_worst_ms=max(underrun, default=math.nan),
        clean_share=clean / len(every) if every else math.nan,
        audio_s_per_s=arrived / window,
        requests_per_s=ended / window,
        late_p99_ms=percentile([1000 * (one.sent - one.due) for one in every], 0.99),
        failures=_failures(every),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank: the smallest value that at least ``share`` of all do not exceed; NaN of nothing."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def _failures(every: Sequence[Played]) -> dict[str, int]:
    failed = [one for one in every if not one.ok]
    texts: dict[str, str] = {}
    for one in failed:
        texts.setdefault(one.failure, one.failure_text)
    kinds = Counter(one.failure for one in failed)
    return {f"{kind}: {texts[kind]}": count for kind, count in kinds.most_common()}
