"""What is known of a talker from its configuration alone; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KVShape:
    """What attention has to keep for each position: ``layers`` pairs of (kv_heads, head_dim)."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def bytes_per_position(self, item: int) -> int:
        """Bytes of keys and values of one position, ``item`` bytes each."""
        return 2 * self.layers * self.kv_heads * self.head_dim * item


@dataclass(frozen=True)
class TalkerFacts:
    """What an engine must know before it loads a talker."""

    kv_shape: KVShape
    length: int
    """Positions that a stream may have."""
    dtype: str
    """The checkpoint's own, as torch spells it."""
