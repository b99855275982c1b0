"""Results of costly work on audio, kept by the content of that audio."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def content_key(samples: npt.NDArray[np.float32], salt: str) -> bytes:
    """A key of what is heard, not of how it is named: hash of the decoded samples (N,) and of ``salt``.

    ``salt`` tells apart different work on the same audio, such as padding on different sides.
    """
    digest = hashlib.blake2b(salt.encode(), digest_size=32)
    # The length keeps a salt's end from being read as samples.
    digest.update(f"|{len(samples)}|".encode())
    digest.update(np.ascontiguousarray(samples, dtype=np.float32).tobytes())
    return digest.digest()


@dataclass(frozen=True)
class CacheStats:
    """Each call is one hit (it was there), one miss (it was computed for this call) or one wait (for another call's
    computation); a call that waited on a failure and then computed for itself is both a wait and a miss."""

    hits: int
    misses: int
    waits: int
    evictions: int
    entries: int
    bytes: int


class AudioCache:
    """Least recently used arrays, bounded in entries and in bytes. Belongs to one event loop.

    Callers get copies, so nothing they do reaches another caller. A value larger than ``max_bytes`` is returned
    but not kept.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        """
        Raises:
            ValueError: a bound is negative. Zero keeps nothing.
        """
        for name, value in (("max_entries", max_entries), ("max_bytes", max_bytes)):
            if value < 0:
                raise ValueError(f"{name} is {value}; at least 0 is needed")
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self._entries: OrderedDict[bytes, Array] = OrderedDict()
        self._bytes = 0
        self._hits = self._misses = self._waits = self._evictions = 0
        self._flights: dict[bytes, asyncio.Task[Array]] = {}

    async def get(self, key: bytes, compute: Callable[[], Awaitable[Array]]) -> Array:
        """The value of ``key``, from ``compute`` unless it is there or another call is at it already.

        Those who wait share the result, and no caller's cancel ends the computation. An error of ``compute`` is
        raised to the caller whose ``compute`` it was and kept nowhere; those who waited on it go on with their own.
        """
        while True:
            if key in self._entries:
                self._hits += 1
                self._entries.move_to_end(key)
                return self._entries[key].copy()
            flight = self._flights.get(key)
            if flight is None:
                self._misses += 1
                own = self._flights[key] = asyncio.ensure_future(self._fly(key, compute))
                # Unlike awaiting the task, which would hand this caller's cancel on to it.
                await asyncio.wait({own})
                return own.result().copy()
            self._waits += 1
            await asyncio.wait({flight})
            if flight.exception() is None:
                return flight.result().copy()

    @property
    def stats(self) -> CacheStats:
        return CacheStats(self._hits, self._misses, self._waits, self._evictions, len(self._entries), self._bytes)

    async def _fly(self, key: bytes, compute: Callable[[], Awaitable[Array]]) -> Array:
        try:
            # A private copy: the array that compute returned may be written to later.
            value = np.array(await compute())
            self._store(key, value)
            return value
        finally:
            del self._flights[key]

    def _store(self, key: bytes, value: Array) -> None:
        if value.nbytes > self.max_bytes or self.max_entries == 0:
            return
        self._entries[key] = value
        self._bytes += value.nbytes
        while len(self._entries) > self.max_entries or self._bytes > self.max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.nbytes
            self._evictions += 1
