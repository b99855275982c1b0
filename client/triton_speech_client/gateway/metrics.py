"""What the gateway counts, for Prometheus. Labels are few and known: no key, no text, no path of a caller's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

_SECONDS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """A registry of its own, so that several gateways may live in one process."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.open_sessions = 0
        prefix = "triton_speech_gateway"
        self.requests = Counter(
            f"{prefix}_requests", "Answers, by route and status", ["route", "status"], registry=registry
        )
        self.first_audio = Histogram(
            f"{prefix}_first_audio_seconds",
            "From the request to the first bytes of audio",
            ["format"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.active = Gauge(f"{prefix}_active_utterances", "Utterances that are being made", registry=registry)
        self.sessions = Gauge(f"{prefix}_live_sessions", "Open connections for live text", registry=registry)
        self.utterances = Counter(
            f"{prefix}_utterances",
            "Utterances, by caller and end: done, left, failed",
            ["caller", "end"],
            registry=registry,
        )
        self.characters = Counter(f"{prefix}_characters", "Characters spoken, by caller", ["caller"], registry=registry)
        self.audio = Counter(f"{prefix}_audio_seconds", "Seconds of audio sent", registry=registry)

    @contextmanager
    def utterance(self, caller: str) -> Iterator[None]:
        """Counts an utterance from its begin to its end."""
        self.active.inc()
        end = "failed"
        try:
            yield
            end = "done"
        except (GeneratorExit, asyncio.CancelledError):
            end = "left"
            raise
        finally:
            self.active.dec()
            self.utterances.labels(caller, end).inc()

    @contextmanager
    def session(self) -> Iterator[None]:
        """Counts a connection for live text while it is open."""
        self.sessions.inc()
        self.open_sessions += 1
        try:
            yield
        finally:
            self.sessions.dec()
            self.open_sessions -= 1

    def response(self) -> Response:
        """The text that Prometheus reads."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
