"""When the streams of an ensemble are to be asked whether their caller is still there."""

from __future__ import annotations

import threading

LOST_COUNT = 10
"""What was sent and did not come back. A machine that stands still makes it late, and does not make it more."""


class Pulses:
    """Streams, and when something was last sent for each. Thread-safe.

    Triton marks what it hands to a step of an ensemble as cancelled once the ensemble's caller has gone, and tells the
    steps that already run nothing. So a stream that has nothing to send is due for a pulse, which goes through the
    ensemble as its chunks do, and comes back marked. From an ensemble that has failed nothing comes back any more.

    Args:
        seconds: longest silence of a stream; 0 asks none.
        seconds_each: the same for each stream that there is: how much of the machine all pulses may take together.
        lost_seconds: a stream of which nothing has come back for so long is lost.
    """

    def __init__(self, seconds: float, seconds_each: float, lost_seconds: float) -> None:
        self._lost_seconds = lost_seconds
        self._seconds = seconds
        self._seconds_each = seconds_each
        # The one that has been silent for the longest time comes first.
        self._sent: dict[str, float] = {}
        # Since when nothing has come back, and how much was sent since then.
        self._out: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    @property
    def interval(self) -> float:
        """Seconds of silence after which a stream is due, as many as there are now."""
        return max(self._seconds, self._seconds_each * len(self._sent))

    def begin(self, stream: str, now: float) -> None:
        if self._seconds:
            with self._lock:
                self._sent[stream] = now

    def sent(self, stream: str, now: float) -> None:
        """Notes that something was sent for a stream; one that has not begun, or is over, is ignored."""
        with self._lock:
            if self._sent.pop(stream, None) is not None:
                self._sent[stream] = now
                since, count = self._out.get(stream, (now, 0))
                self._out[stream] = since, count + 1

    def came_back(self, stream: str) -> None:
        with self._lock:
            self._out.pop(stream, None)

    def end(self, stream: str) -> None:
        with self._lock:
            self._sent.pop(stream, None)
            self._out.pop(stream, None)

    def lost(self, now: float) -> list[str]:
        """The streams whose ensemble has failed: nothing has come back for a long time."""
        with self._lock:
            return [
                stream
                for stream, (since, count) in self._out.items()
                if count >= LOST_COUNT and now - since >= self._lost_seconds
            ]

    def due(self, now: float) -> list[str]:
        """The streams that have been silent for too long, the longest first."""
        with self._lock:
            silent = now - self.interval
            return [stream for stream, sent in self._sent.items() if sent <= silent]

    def wait(self, now: float) -> float | None:
        """Seconds until the next one is due; None where there is none."""
        with self._lock:
            first = next(iter(self._sent.values()), None)
            return None if first is None else max(0.0, first + self.interval - now)
