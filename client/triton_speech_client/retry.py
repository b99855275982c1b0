"""When a request that nobody has heard anything of yet is sent once more."""

from __future__ import annotations

import random
import re
import time

from triton_speech_client.errors import InvalidRequest, ServerUnavailable

RETRIES = 2
"""Default of how often a stream is tried again."""
FIRST_SECONDS = 0.2
"""Longest wait before the first retry; it doubles with every further one."""
LONGEST_SECONDS = 5.0
"""Longest wait that is made up here. What the server asks for may be longer."""

_HINT = re.compile(r"(?:try again|retry) (?:in|after) (?P<seconds>\d+(?:\.\d+)?) ?s\b", re.IGNORECASE)


def check_retries(value: int) -> int:
    """``value`` if it can be a number of retries."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest("retries", f"{value!r} is not a whole number of 0 or more")
    return value


class Retries:
    """The retries of one request: how often it may be sent again, and how long to wait before.

    The wait is drawn between half of the backoff and all of it, so that callers who were refused together do not
    come back together. A hint in the server's text ("try again in 2 s") is the least wait; as much jitter as the
    backoff allows comes on top. No retry begins later than ``limit`` seconds after the first try: a caller waits
    for its first audio as long with retries as without.
    """

    def __init__(self, retries: int, limit: float) -> None:
        self._left = retries
        self._backoff = FIRST_SECONDS
        self._limit = time.monotonic() + limit

    def wait(self, error: ServerUnavailable) -> float | None:
        """Seconds until the request may be sent again; None where it should not be."""
        if self._left < 1:
            return None
        self._left -= 1
        jitter = random.uniform(self._backoff / 2, self._backoff)
        self._backoff = min(2 * self._backoff, LONGEST_SECONDS)
        wait = hinted_seconds(str(error)) + jitter
        return wait if time.monotonic() + wait < self._limit else None


def hinted_seconds(text: str) -> float:
    """The wait that a server's text asks for; 0 where it asks for none."""
    hint = _HINT.search(text)
    return float(hint["seconds"]) if hint else 0.0
