"""The streams that wait for a slot, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable

from .api import TalkerRequest

FAIR_TURN = 4
"""Each so many-th place goes to whoever has waited longest, so that nobody waits for ever behind the others."""


class WaitingLine:
    """Streams of a higher priority first, among equals the oldest. Single-threaded."""

    def __init__(self) -> None:
        self._waiting: list[TalkerRequest] = []
        self._places = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: TalkerRequest) -> None:
        self._waiting.append(request)

    def take(self) -> TalkerRequest:
        """The stream whose turn it is; there must be one."""
        self._places += 1
        if self._places % FAIR_TURN == 0:
            return self._waiting.pop(0)
        first = max(range(len(self._waiting)), key=lambda place: (self._waiting[place].priority, -place))
        return self._waiting.pop(first)

    def remove(self, leaves: Callable[[TalkerRequest], bool]) -> list[TalkerRequest]:
        """Takes out and returns those that leave, the oldest first."""
        gone = [request for request in self._waiting if leaves(request)]
        if not gone:
            return []
        self._waiting = [request for request in self._waiting if not leaves(request)]
        return gone
