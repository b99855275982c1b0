"""What one request was and how it went: counted, and told in one line of the log."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import SpeechError
from ..probe import PROBE_ID
from . import catalogue
from .totals import Totals

MOST_OF_AN_ID = 128
"""Characters of a caller's own request id that the log repeats."""

Span = tuple[str, int, int]
"""A name, beginning and end in nanoseconds since 1970."""

_log = logging.getLogger("triton_speech.requests")


def start_request_log() -> None:
    """Lines of JSON and nothing else, each written at once, on the stub's stderr: the server's own log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.handlers = [handler]
    _log.setLevel(logging.INFO)
    _log.propagate = False


def write_line(event: str, request_id: str, **facts: Any) -> None:
    """One line of JSON."""
    _log.info(json.dumps({"event": event, "id": request_id[:MOST_OF_AN_ID], **facts}))


def rounded(times: Mapping[str, float]) -> dict[str, float]:
    """Seconds to a tenth of a millisecond."""
    return {name: round(seconds, 4) for name, seconds in times.items()}


class RequestRecord:
    """Collects times while a request runs; belongs to one thread.

    Ends once, with whatever is told first: ``finished`` or ``failed``.

    Args:
        pipeline: the model that was called.
        totals: where the request is counted, and its times observed.
        is_traced: keep the times of each part.
        facts: more fields for the line.
    """

    def __init__(
        self,
        pipeline: str,
        request_id: str,
        totals: Totals,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_traced: bool = False,
        **facts: Any,
    ) -> None:
        self._clock = clock
        self._began = clock()
        self._totals = totals
        self.request_id = request_id[:MOST_OF_AN_ID]
        self._is_traced = is_traced
        self._spans: list[tuple[str, float, float]] = []
        self._pipeline = pipeline
        self._facts = facts
        self._times: dict[str, float] = {}
        self._chunks = 0
        self._seconds = 0.0
        self._held = 0.0
        self._first_audio: float | None = None
        self.ended = False

    def took(self, what: str, seconds: float) -> None:
        """Notes how long something took; of several times the first."""
        self._times.setdefault(what, seconds)

    @contextmanager
    def timing(self, what: str, span: str | None = None) -> Iterator[None]:
        """Notes how long the block takes, unless it fails; ``span`` is its name in a trace, else it is ``what``."""
        began = self._clock()
        with self.span(span or what):
            yield
        self.took(what, self._clock() - began)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Keeps the block's times for a trace."""
        began = self._clock()
        try:
            yield
        finally:
            if self._is_traced:
                self._spans.append((name, began, self._clock()))

    def spans(self, whole: str) -> list[Span]:
        """The whole request under this name, then its parts, until now."""
        # The clock has no date of its own.
        offset = time.time() - self._clock()
        spans = [(whole, self._began, self._clock()), *self._spans]
        return [(name, int(1e9 * (began + offset)), int(1e9 * (ended + offset))) for name, began, ended in spans]

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Takes the block out of the real-time factor: the caller had enough to play."""
        began = self._clock()
        try:
            yield
        finally:
            self._held += self._clock() - began

    def chunk(self, samples: int, sample_rate: int) -> None:
        """Notes that a chunk is about to be sent."""
        self._chunks += 1
        self._seconds += samples / sample_rate
        if samples and self._first_audio is None:
            self._first_audio = self._since()
            self._totals.observe(catalogue.FIRST_AUDIO, self._first_audio)

    def finished(self, reason: str) -> None:
        """The last chunk has this FINISH_REASON."""
        outcome, reason = catalogue.how_it_finished(reason)
        if not self.ended and outcome == "ok" and self._first_audio is not None and self._seconds:
            factor = (self._since() - self._first_audio - self._held) / self._seconds
            self._totals.observe(catalogue.REAL_TIME_FACTOR, factor)
        self._end(outcome, reason)

    def failed(self, error: BaseException) -> None:
        """The request ends with this error."""
        field = error.field if isinstance(error, SpeechError) else None
        self._end(*catalogue.how_it_failed(error), **({"field": field} if field else {}))

    def _end(self, outcome: str, reason: str, **more: Any) -> None:
        if self.ended:
            return
        self.ended = True
        if self.request_id == PROBE_ID:
            return
        self._totals.count(catalogue.REQUESTS, outcome, reason)
        if self._first_audio is not None:
            self.took("first_audio", self._first_audio)
        write_line(
            "request",
            self.request_id,
            pipeline=self._pipeline,
            outcome=outcome,
            reason=reason,
            **more,
            **self._facts,
            chunks=self._chunks,
            audio_seconds=round(self._seconds, 4),
            seconds=rounded({**self._times, "total": self._since()}),
        )

    def _since(self) -> float:
        return self._clock() - self._began
