"""A codec as its stage sees it: patches of several streams in, their samples out."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from .captured_decode import CapturedSteps, graph_shapes
from .codec_buffers import AudioBatch, Lane, Packing
from .graph_use import GraphUse
from .protocol import SCRATCH_SLOT

LANES = 2
"""Batches that may be on their way at once."""


class SlotCodec(ABC):
    """Decoder state for many streams, and batches over any of them. For one thread at a time.

    Args:
        rows: (slots, N) fp32, the state of each; zero where a stream begins.
        patch_shape: of what is decoded.
        sample_rate: in Hz.
        samples_per_patch: of the audio.
        max_batch: patches in the largest batch that has a graph.
        pieces: patches of each stream that have graphs.
        graphs: capture CUDA graphs; without a GPU there are none. Batches without a graph run eagerly.
    """

    def __init__(
        self,
        rows: Tensor,
        patch_shape: tuple[int, int],
        sample_rate: int,
        samples_per_patch: int,
        *,
        max_batch: int = 1,
        pieces: Sequence[int] = (1,),
        graphs: bool = True,
    ) -> None:
        self._rows, self._device = rows, rows.device
        self.patch_shape, self.sample_rate, self.samples_per_patch = patch_shape, sample_rate, samples_per_patch
        self._packing = Packing(patch_shape)
        self._lanes = itertools.cycle([Lane(self._device) for _ in range(LANES)])
        self.graph_use = GraphUse()
        self._graphs: CapturedSteps | None = None
        if graphs and self._device.type == "cuda":
            shapes = graph_shapes(max_batch, pieces)
            with torch.inference_mode():
                self._graphs = CapturedSteps(self._advance, shapes, self._packing, samples_per_patch, self._device)

    @abstractmethod
    def _advance(self, patches: Tensor, slots: Tensor) -> Tensor:
        """patches (B, T, P, D) fp32 of slots (B,) int64 -> audio (B, N) fp32; the state of the slots moves on.

        The state must be found at the same address each time, and nothing asked of the device.
        """

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        """A new stream begins in ``slot``. Work for the old one that still runs on a GPU comes before this."""
        self._rows[slot] = 0.0

    @torch.inference_mode()
    def launch(self, patches: Tensor, slots: Sequence[int]) -> AudioBatch:
        """Begins to decode the next patches (B, T, P, D) fp32 of the streams in ``slots`` (B distinct)."""
        batch = (len(slots), patches.shape[1])
        lane = next(self._lanes)
        if lane.batch is not None:
            lane.batch.result()
        captured = None if self._graphs is None else self._graphs.fitting(*batch)
        if self._graphs is not None:
            self.graph_use.count(replayed=captured is not None)
        inputs = lane.pack(self._packing, captured or batch, patches, slots, SCRATCH_SLOT)
        if self._graphs is not None and captured is not None:
            audio = self._graphs.replay(captured, inputs)
        else:
            packed = self._packing.open(inputs.to(self._device, non_blocking=True), *batch)
            audio = self._advance(packed.patches, packed.slots)
        return lane.collect(audio[: len(slots)])

    def decode(self, patches: Tensor, slots: Sequence[int]) -> Tensor:
        """The next patches (B, T, P, D) fp32 of the streams in ``slots`` (B distinct) -> samples (B, N) fp32."""
        return self.launch(patches, slots).result()
