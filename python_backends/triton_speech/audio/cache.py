"""Results of costly work on audio, kept by the content of that audio."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
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
    hits: int
    misses: int
    evictions: int
    entries: int
    bytes: int


class AudioCache:
    """Least recently used arrays, bounded in entries and in bytes. Thread-safe.

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
        self._hits = self._misses = self._evictions = 0
        self._lock = threading.Lock()
        self._flights: dict[bytes, _Flight] = {}

    def get_or_compute(self, key: bytes, compute: Callable[[], Array]) -> Array:
        """The value of ``key``, computed in the calling thread unless another one is at it already.

        Those who wait share the result. An error of ``compute`` is raised to the caller whose ``compute`` it was
        and stored nowhere; those who waited on it go on with their own.
        """
        while True:
            with self._lock:
                if key in self._entries:
                    self._hits += 1
                    self._entries.move_to_end(key)
                    return self._entries[key].copy()
                flight = self._flights.get(key)
                if flight is None:
                    own = self._flights[key] = _Flight()
                    self._misses += 1
                    break
            flight.done.wait()
            if flight.value is not None:
                with self._lock:
                    self._hits += 1
                return flight.value.copy()
        try:
            # A private copy: the array that compute returned may be written to later.
            own.value = np.array(compute())
        finally:
            with self._lock:
                del self._flights[key]
                if own.value is not None:
                    self._store(key, own.value)
            own.done.set()
        return own.value.copy()

    @property
    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(self._hits, self._misses, self._evictions, len(self._entries), self._bytes)

    def _store(self, key: bytes, value: Array) -> None:
        if value.nbytes > self.max_bytes or self.max_entries == 0:
            return
        self._entries[key] = value
        self._bytes += value.nbytes
        while len(self._entries) > self.max_entries or self._bytes > self.max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.nbytes
            self._evictions += 1


class _Flight:
    """One computation under way, and its value when it is done without an error."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.value: Array | None = None
