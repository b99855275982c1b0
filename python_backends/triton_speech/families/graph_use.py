"""How often captured steps were of use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class GraphUse:
    """Written by the thread that owns the model, read by any.

    Attributes:
        replays: steps that a captured graph ran.
        fallbacks: steps that a graph was to run and none did: none fitted, or capturing had failed.
    """

    replays: int = 0
    fallbacks: int = 0

    def count(self, *, replayed: bool) -> None:
        if replayed:
            self.replays += 1
        else:
            self.fallbacks += 1
