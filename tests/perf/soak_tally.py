"""What the soak has seen of its streams so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Seen:
    """How a stream ended for its caller.

    ``outcome`` and ``reason`` as in the server's metrics; besides, ``left`` and ``hit`` (by a kill), where the server
    may have seen another end.
    """

    request_id: str
    pipeline: str
    outcome: str
    reason: str
    chunks: int
    is_by_triton: bool = False
    """Refused before any stage."""


@dataclass
class Tally:
    """``faults`` are sentences; there should be none."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    seen: list[Seen] = field(default_factory=list)

    def fault(self, text: str, kind: str = "") -> None:
        """``kind``: what faults of one cause have in common."""
        self.counts["faults"] += 1
        self.kinds[kind or text] += 1
        self.faults.append(text)
