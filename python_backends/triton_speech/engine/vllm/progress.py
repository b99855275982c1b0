"""How far the streams have come, kept on the device: a row that is run again makes nothing a second time.

vLLM runs rows of a stream once more where it had to take its cache away. Keys and values are then made anew, but what
a row has made lies in the talker's buffers already, and making it again would change them: codes would count twice
for a penalty, a decoder would hear a frame twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...families.host_copies import HostCopies

_NEVER = 2**62


class Progress:
    """For ``slots`` streams. All but ``begin`` has fixed shapes and asks nothing of the device."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self._next = torch.zeros(slots, dtype=torch.int64, device=device)
        self._end = torch.full_like(self._next, _NEVER)
        self._copies = HostCopies(device)

    def begin(self, streams: Sequence[tuple[int, int]]) -> None:
        """New streams, each a slot and the length of its prompt, whose last row makes the first frame."""
        slots, lengths = self._copies.upload(torch.tensor(streams, dtype=torch.int64).T.contiguous())
        self._next[slots] = lengths - 1
        self._end[slots] = torch.full_like(slots, _NEVER)

    def is_new(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Whether rows (B,) are to make something: neither in the prompt nor run before. (B,) bool."""
        return positions >= self._next[slots]

    def advance(self, slots: Tensor, positions: Tensor, stops: Tensor) -> None:
        """Rows (B,) have made what follows them, and the stream is over where ``stops`` says so."""
        self._next[slots] = positions + 1
        self._end[slots] = torch.where(stops, positions, _NEVER)

    def is_over(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Whether the streams of rows (B,) have ended there or before. (B,) bool."""
        return positions >= self._end[slots]
