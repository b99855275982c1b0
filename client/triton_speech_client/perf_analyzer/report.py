"""From perf_analyzer's profile export to the times of a stream's first response.

perf_analyzer says of a decoupled model that it uses "the first response for measuring latency", and prints the time of
the whole stream (seen in 2.51). Its export has the time of every response, and what was in it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_speech_client.bench.streams import Job, Played
from triton_speech_client.bench.summary import percentile
from triton_speech_client.errors import InvalidRequest

EXPLANATION = """\
perf_analyzer's own latency is that of the whole stream, also where it says that it uses the first response.
First response: from sending a request to its first response; where responses carry audio, to the first with samples.
Whole stream: from sending a request to its last response.
RTF: whole stream by the seconds of its audio. Underrun: the longest time that a player which begins with the first
audio would have had to wait for a later response. Percentiles are nearest ranks."""

_NANOSECONDS = 1e-9


@dataclass(frozen=True)
class Experiment:
    """One level of load of an export: ``mode`` is ``concurrency`` or ``request_rate``."""

    mode: str
    level: float
    requests: list[Request]


@dataclass(frozen=True)
class Request:
    """Seconds from sending a request: to its first response (with audio, where there is audio), and to its last."""

    first: float
    whole: float
    responses: int
    played: Played | None
    """As the bench has it; None where the responses carry no audio."""


CUT_SHORT = "is cut short, for perf_analyzer ended before all of it was written"


def read_export(path: Path) -> list[Experiment]:
    """The experiments of a profile export; raises ``InvalidRequest`` for a file that is none, or holds nothing."""
    try:
        # Strings of an input, such as a recording, are in it byte for byte.
        text = path.read_text(encoding="utf-8", errors="replace").rstrip()
        if text.startswith("{") and not text.endswith("}"):
            raise InvalidRequest("export", f"{str(path)!r} {CUT_SHORT}: measure again")
        content = json.loads(text, strict=False)
        experiments = [
            Experiment(
                str(one["experiment"]["mode"]),
                float(one["experiment"]["value"]),
                [_request(request) for request in one["requests"] if request["response_timestamps"]],
            )
            for one in content["experiments"]
        ]
    except OSError as e:
        raise InvalidRequest("export", f"{str(path)!r} cannot be read: {e.strerror or e}") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InvalidRequest("export", f"{str(path)!r} is no --profile-export-file of perf_analyzer") from e
    if not any(one.requests for one in experiments):
        raise InvalidRequest("export", f"{str(path)!r} holds no request that was answered")
    return experiments


def table(experiments: Sequence[Experiment]) -> str:
    """Markdown, one line for each level of load."""
    times = "first response p50 / p90 / p99 | whole stream p50 / p90 / p99"
    titles = f"{experiments[0].mode} | requests | {times} | responses | RTF p50 | worst underrun"
    lines = [f"| {titles} |", "|---" * 7 + "|"]
    for one in experiments:
        if not one.requests:
            continue
        played = [request.played for request in one.requests if request.played]
        factor = f"{percentile([each.real_time_factor for each in played], 0.5):.2f}" if played else "-"
        underrun = f"{1000 * max(each.underrun for each in played):.0f} ms" if played else "-"
        cells = [
            f"{one.level:g}",
            str(len(one.requests)),
            _times([request.first for request in one.requests]),
            _times([request.whole for request in one.requests]),
            f"{statistics.mean(request.responses for request in one.requests):.1f}",
            factor,
            underrun,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _times(values: Sequence[float]) -> str:
    return " / ".join(f"{1000 * percentile(values, share):.1f}" for share in (0.5, 0.9, 0.99)) + " ms"


def _request(request: Mapping[str, Any]) -> Request:
    sent = int(request["timestamp"])
    times = [_NANOSECONDS * (int(at) - sent) for at in request["response_timestamps"]]
    outputs = request.get("response_outputs", [])
    audio = [(at, _seconds(output)) for at, output in zip(times, outputs, strict=False)]
    arrivals = tuple((at, seconds) for at, seconds in audio if seconds)
    played = Played(Job("", 0), 0.0, 0.0, times[-1], arrivals) if arrivals else None
    return Request(arrivals[0][0] if arrivals else times[0], times[-1], len(times), played)


def _seconds(output: Mapping[str, Any]) -> float:
    samples = output.get("PCM16", output.get("AUDIO"))
    if samples is None or "SAMPLE_RATE" not in output:
        return 0.0
    # A tensor of one element is written as a bare number.
    return (len(samples) if isinstance(samples, list) else 1) / float(output["SAMPLE_RATE"])
