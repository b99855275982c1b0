"""How many frames go into each chunk of a stream: small at first for an early start, larger later for efficiency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MAX_ENTRIES = 32
MAX_FRAMES = 64

T = TypeVar("T")


@dataclass(frozen=True)
class ChunkSchedule:
    """Frames of the first, second, ... chunk; the last entry holds for all that follow.

    Raises:
        ValueError: no entry, more than 32, or one outside 1 to 64.
    """

    frames: tuple[int, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        if not 1 <= len(self.frames) <= MAX_ENTRIES:
            raise ValueError(f"has {len(self.frames)} entries, must have 1 to {MAX_ENTRIES}")
        for size in self.frames:
            if not 1 <= size <= MAX_FRAMES:
                raise ValueError(f"holds {size}, each entry must be 1 to {MAX_FRAMES} frames")

    @classmethod
    def parse(cls, text: str) -> ChunkSchedule:
        """Reads ``"1,2,4"``."""
        try:
            return cls(tuple(int(part) for part in text.split(",")))
        except ValueError as error:
            raise ValueError(f"chunk schedule {text!r}: {error}") from error

    def size(self, chunk: int) -> int:
        """Frames of the chunk with this index."""
        return self.frames[min(chunk, len(self.frames) - 1)]


@dataclass
class Chunker(Generic[T]):
    """Gathers one stream's frames into chunks."""

    schedule: ChunkSchedule
    chunks: int = 0
    """Chunks handed out so far: the index of the next one."""
    _held: list[T] = field(default_factory=list)

    def push(self, frames: Sequence[T], *, last: bool) -> list[T]:
        """Takes frames and returns the next chunk once it is full, or all that is held at the end; else nothing."""
        self._held.extend(frames)
        if not last and len(self._held) < self.schedule.size(self.chunks):
            return []
        chunk, self._held = self._held, []
        self.chunks += 1
        return chunk
