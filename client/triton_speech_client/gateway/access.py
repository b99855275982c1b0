"""Who may call, and how much: API keys, rates, and utterances at once."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from triton_speech_client.gateway.errors import RETRY_SECONDS, ApiError, retry_after
from triton_speech_client.gateway.settings import ApiKey

ANONYMOUS = "anonymous"


class Bucket:
    """``per_minute`` units that refill evenly; a caller may use a minute's worth at once. None is no limit."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = math.inf if per_minute is None else float(per_minute)
        self._level = self._capacity
        self._clock = clock
        self._filled = clock()

    def wait(self, amount: float) -> float:
        """Seconds until ``amount`` is there; 0 where it is, infinite where it never will be."""
        if math.isinf(self._capacity):
            return 0.0
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._filled) * self._capacity / 60)
        self._filled = now
        if amount > self._capacity:
            return math.inf
        return max(0.0, (amount - self._level) * 60 / self._capacity)

    def take(self, amount: float) -> None:
        """Takes what ``wait`` said is there."""
        self._level -= amount


class Caller:
    """One key's allowances, shared by all of its requests."""

    def __init__(self, name: str, key: ApiKey | None, house: House) -> None:
        self.name = name
        self.active = 0
        self._house = house
        self._may_manage_voices = key is None or key.manage_voices
        self._max_concurrent = key.max_concurrent if key else None
        self._requests = Bucket(key.requests_per_minute if key else None)
        self._characters = Bucket(key.characters_per_minute if key else None)

    def check_manages_voices(self) -> None:
        """Raises ``ApiError`` 403 for a key that may not add and remove voices."""
        if not self._may_manage_voices:
            text = f"the key {self.name!r} may not change voices; its entry in the key file needs manage_voices = true"
            raise ApiError(403, text, code="permission_denied")

    @contextmanager
    def utterance(self, characters: int = 0) -> Iterator[None]:
        """Holds a place for one utterance while it is made.

        Raises:
            ApiError: 429 where this caller has used up what is allowed to him, 503 where the gateway is full.
        """
        if self._max_concurrent is not None and self.active >= self._max_concurrent:
            raise _too_much(f"{self._max_concurrent} utterances at once are allowed", RETRY_SECONDS)
        self._house.check_place()
        if wait := self._requests.wait(1):
            raise _too_much("the requests of this minute are used up", wait)
        self.spend(characters)
        self._requests.take(1)
        self.active += 1
        self._house.active += 1
        try:
            yield
        finally:
            self.active -= 1
            self._house.active -= 1

    def spend(self, characters: int) -> None:
        """Counts characters of text; raises ``ApiError`` 429 where too few are left."""
        wait = self._characters.wait(characters)
        if math.isinf(wait):
            text = f"{characters} characters are more than this key may use in a minute"
            raise ApiError(429, text, code="rate_limit_exceeded")
        if wait:
            raise _too_much("the characters of this minute are used up", wait)
        self._characters.take(characters)


class House:
    """How many utterances run, of all callers together."""

    def __init__(self, max_concurrent: int) -> None:
        self.active = 0
        self._max_concurrent = max_concurrent

    def check_place(self) -> None:
        if self.active >= self._max_concurrent:
            text = f"the gateway is full ({self._max_concurrent}); try again in a moment"
            raise ApiError(503, text, code="overloaded", headers=retry_after())


class Access:
    """Knows the keys. Without any, everybody is let in as one caller without limits of his own."""

    def __init__(self, keys: Sequence[ApiKey], max_concurrent: int) -> None:
        self.house = House(max_concurrent)
        self._callers = [(key.digest, Caller(key.name, key, self.house)) for key in keys]
        self._anonymous = Caller(ANONYMOUS, None, self.house)

    @property
    def is_open(self) -> bool:
        return not self._callers

    def caller(self, authorization: str | None) -> Caller:
        """The caller behind an ``Authorization`` header; raises ``ApiError`` 401 for none that is known."""
        if self.is_open:
            return self._anonymous
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorized("no API key was given; send it as 'Authorization: Bearer KEY'")
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        # All are compared, and digests of one length: the time tells nothing about a key.
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise _unauthorized("the API key is not known")
        return found


def _unauthorized(text: str) -> ApiError:
    return ApiError(401, text, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _too_much(text: str, wait: float) -> ApiError:
    headers = {"Retry-After": str(math.ceil(wait))}
    return ApiError(429, f"{text}; try again in {math.ceil(wait)} s", code="rate_limit_exceeded", headers=headers)
