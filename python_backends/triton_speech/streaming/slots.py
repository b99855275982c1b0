"""Which stream holds which slot: leased at its first chunk, released at its last, or after too long a silence."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import full
from .silence import SilentTail


@dataclass
class Lease:
    slot: int
    next_chunk: int
    last_used: float
    waiting: int = 0
    """Chunks taken in and not answered yet."""
    tail: SilentTail | None = None
    """Of its samples, where silence at the end is to be cut."""


class SlotTable:
    """Leases slots ``first`` to ``first + capacity - 1``. Not thread-safe: one thread is its only user.

    Args:
        capacity: streams at once.
        idle_seconds: a stream silent for longer, and with no chunk waiting, may be turned out when no slot is free.
        first: lowest slot; slots below it are the owner's (scratch).
    """

    def __init__(self, capacity: int, idle_seconds: float, *, first: int = 0) -> None:
        self.capacity = capacity
        self.idle_seconds = idle_seconds
        self._free = list(range(first + capacity - 1, first - 1, -1))
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def streams(self) -> list[str]:
        return list(self._leases)

    def find(self, stream: str) -> Lease | None:
        return self._leases.get(stream)

    def lease(self, stream: str, now: float) -> Lease:
        """A slot for a new stream.

        Raises:
            SpeechError: UNAVAILABLE when every slot is held by a stream that is still alive.
        """
        if not self._free:
            self._expire(now)
        if not self._free:
            raise full("the codec", self.capacity)
        lease = self._leases[stream] = Lease(self._free.pop(), next_chunk=0, last_used=now)
        return lease

    def release(self, stream: str) -> None:
        """Frees a stream's slot. Unknown streams are ignored: an end may be told twice."""
        lease = self._leases.pop(stream, None)
        if lease is not None:
            self._free.append(lease.slot)

    def _expire(self, now: float) -> None:
        silent = now - self.idle_seconds
        for stream in [s for s, lease in self._leases.items() if lease.last_used < silent and not lease.waiting]:
            self.release(stream)
