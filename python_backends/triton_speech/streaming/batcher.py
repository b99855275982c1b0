"""Which patches of which streams are decoded together: continuous batching, one piece of each stream a round."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .window import CoalescingWindow, Decision, Load

T = TypeVar("T")

PIECES = (1, 2, 4, 8)
"""Patches of each stream in one round."""


@dataclass(eq=False)
class Queued(Generic[T]):
    """A chunk on its way: ``item`` is the owner's, ``patches`` of it have to be decoded, ``taken`` are in a round."""

    item: T
    stream: str
    patches: int
    is_first: bool
    ready_at: float
    order: int
    taken: int = 0

    @property
    def left(self) -> int:
        return self.patches - self.taken


@dataclass(frozen=True)
class Row(Generic[T]):
    """A stream's part in a round: patches ``start`` to ``stop`` of a chunk. None for a chunk that only tells an end."""

    chunk: Queued[T]
    start: int
    stop: int

    @property
    def ends_chunk(self) -> bool:
        return self.stop == self.chunk.patches


@dataclass(frozen=True)
class Round(Generic[T]):
    """What is decoded in one call.

    Attributes:
        rows: of distinct streams, ``patches`` patches each; first chunks before later ones, then oldest first.
        patches: for each row; 0 where there is no row.
        ends: rows of no patch; their turn is when this round's results, and those of all before it, are there.
    """

    rows: list[Row[T]]
    patches: int
    ends: list[Row[T]]


@dataclass
class Batcher(Generic[T]):
    """Queues of chunks by stream, and the choice of each round. Knows no model and no clock.

    A round takes one piece from each of up to ``max_batch`` streams: one patch, or as many as every row still has and
    as ``max_batch`` patches in all allow, so that a stream which has just begun waits for one bounded round at most.
    A stream's chunks are decoded in the order of their arrival.

    Args:
        window: decides when a round is due; its ``max_batch`` is the number of patches in one round.
        pieces: allowed numbers of patches a row, beginning with 1.
    """

    window: CoalescingWindow
    pieces: Sequence[int] = PIECES
    _queues: dict[str, deque[Queued[T]]] = field(default_factory=dict, init=False)
    _order: itertools.count[int] = field(default_factory=itertools.count, init=False)

    def __len__(self) -> int:
        """Streams that have something to decode or an end to tell."""
        return len(self._queues)

    def add(self, stream: str, item: T, *, patches: int, is_first: bool, now: float) -> None:
        """Queues a stream's next chunk."""
        chunk = Queued(item, stream, patches, is_first, now, next(self._order))
        self._queues.setdefault(stream, deque()).append(chunk)

    def drop(self, stream: str) -> list[T]:
        """Forgets a stream; its chunks that were not taken whole, oldest first. Unknown streams have none."""
        return [chunk.item for chunk in self._queues.pop(stream, ())]

    def decide(self, now: float, *, live: int, running: int) -> Decision:
        """What to do at time ``now``, with ``live`` streams begun and ``running`` rounds not collected."""
        since = min((queue[0].ready_at for queue in self._queues.values()), default=now)
        return self.window.decide(now, Load(len(self._queues), since, live, running))

    def take(self) -> Round[T]:
        """The next round; its pieces count as taken."""
        heads = sorted((queue[0] for queue in self._queues.values()), key=lambda c: (not c.is_first, c.order))
        ends = [self._advance(chunk, 0) for chunk in heads if not chunk.patches]
        chosen = [chunk for chunk in heads if chunk.patches][: self.window.max_batch]
        if not chosen:
            return Round([], 0, ends)
        limit = min(min(chunk.left for chunk in chosen), self.window.max_batch // len(chosen))
        patches = max(piece for piece in self.pieces if piece <= limit)
        return Round([self._advance(chunk, patches) for chunk in chosen], patches, ends)

    def _advance(self, chunk: Queued[T], patches: int) -> Row[T]:
        row = Row(chunk, chunk.taken, chunk.taken + patches)
        chunk.taken += patches
        if not chunk.left:
            queue = self._queues[chunk.stream]
            queue.popleft()
            if not queue:
                del self._queues[chunk.stream]
        return row
