"""A decoder's step over state slots as CUDA graphs: its hundred small kernels are launched as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .codec_buffers import Packing

Shape = tuple[int, int]
"""Streams, and patches of each."""

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)

Decode = Callable[[Tensor, Tensor], Tensor]
"""(patches (B, T, P, D), slots (B,) int64) -> audio (B, N), with the state of the slots moved on."""


def graph_shapes(max_batch: int, pieces: Sequence[int]) -> list[Shape]:
    """Shapes that batches are padded to, so that each of up to ``max_batch`` patches (and 256 streams) has one.

    Args:
        max_batch: patches of all streams in one batch.
        pieces: patches of each stream.
    """
    sizes = sorted({min(size, max_batch) for size in SIZES})
    return [
        (size, piece)
        for below, size in zip((0, *sizes[:-1]), sizes, strict=True)
        for piece in pieces
        if (below + 1) * piece <= max_batch
    ]


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    audio: Tensor


class CapturedSteps:
    """One graph for each shape. Gathering and scattering the slots' state is part of it.

    Args:
        decode: what is captured; must find the state at the same address each time.
        shapes: of the batches that will come.
        packing: how a batch's inputs lie in one buffer.
        samples_per_patch: of the audio.
        slot: the scratch slot, which capturing may write to.
    """

    def __init__(
        self, decode: Decode, shapes: Sequence[Shape], packing: Packing, samples_per_patch: int, device: torch.device
    ) -> None:
        self._packing = packing
        self._inputs = torch.zeros(max(packing.bytes(*shape) for shape in shapes), dtype=torch.uint8, device=device)
        # All graphs leave their audio here, so that what one of them needed inside is free for the others.
        self._audio = torch.zeros(max(b * t for b, t in shapes) * samples_per_patch, device=device)
        self._pool = torch.cuda.graph_pool_handle()
        # Largest first: the smaller graphs then fit into the memory of the first.
        largest_first = sorted(shapes, key=lambda shape: shape[0] * shape[1], reverse=True)
        self._graphs = {shape: self._capture(decode, shape, samples_per_patch) for shape in largest_first}

    def fitting(self, batch: int, patches: int) -> Shape | None:
        """The smallest captured shape that holds a batch; None where none does."""
        sizes = [size for size, piece in self._graphs if piece == patches and size >= batch]
        return (min(sizes), patches) if sizes else None

    def replay(self, shape: Shape, inputs: Tensor) -> Tensor:
        """``inputs`` (bytes, packed for ``shape``) -> audio (B, N). The next replay overwrites it: copy it."""
        self._inputs[: len(inputs)].copy_(inputs, non_blocking=True)
        self._graphs[shape].graph.replay()
        return self._graphs[shape].audio

    def _capture(self, decode: Decode, shape: Shape, samples_per_patch: int) -> _Graph:
        batch, patches = shape
        packed = self._packing.open(self._inputs, batch, patches)
        audio = self._audio[: batch * patches * samples_per_patch].view(batch, -1)
        # Zeros all over: the slot of every row is the scratch slot.
        self._inputs.zero_()
        decode(packed.patches, packed.slots)
        torch.cuda.synchronize(self._inputs.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            audio.copy_(decode(packed.patches, packed.slots))
        return _Graph(graph, audio)
