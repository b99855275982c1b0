"""How often and how soon something is tried again."""

from __future__ import annotations

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
CALM_SECONDS = 10.0
STEADY_SECONDS = 60.0


class Backoff:
    """Attempts in a row, at most ``limit``: the first at once, each further one after twice the time of the last.

    After ten calm seconds the next attempt is made at once again, though it counts in the row: what was well so long
    does not fail because it is tried too soon. A steady minute ends the row.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._attempts = 0
        self._hasty = 0
        """Attempts since the last calm."""
        self._is_well = False
        self._last = 0.0

    def next(self, now: float) -> float | None:
        """Seconds to wait before the next attempt; None when there have been enough. ``now`` as ``time.monotonic``."""
        if self._attempts and now - self._last > STEADY_SECONDS:
            self._attempts = 0
        if self._attempts >= self._limit:
            return None
        if not self._attempts or (self._is_well and now - self._last > CALM_SECONDS):
            self._hasty = 0
        self._attempts += 1
        self._hasty += 1
        self._is_well = False
        self._last = now
        return 0.0 if self._hasty == 1 else min(FIRST_SECONDS * 2 ** (self._hasty - 2), LONGEST_SECONDS)

    def succeeded(self, now: float) -> None:
        """An attempt has come to a good end; from here on calm and the steady minute count."""
        self._is_well = True
        self._last = now
