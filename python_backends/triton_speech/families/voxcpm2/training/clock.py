"""How long a run may still take."""

from __future__ import annotations

import time


class Clock:
    """Counts down ``seconds`` from its making; without them there is no end."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, infinite where there is no end; negative after it."""
        return float("inf") if self._end is None else self._end - time.monotonic()
