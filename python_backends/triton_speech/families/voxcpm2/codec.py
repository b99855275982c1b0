"""The codec as a stage sees it: patches of several streams in, their samples out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..protocol import SCRATCH_SLOT
from .captured_step import CapturedSteps, graph_shapes
from .checkpoint import load_audio_vae
from .codec_buffers import AudioBatch, Lane, Packing
from .config import VoxCPM2Config
from .streaming_decoder import StreamingDecoder

LANES = 2
"""Batches that may be on their way at once."""


class VoxCPM2Codec:
    """Decoder state for ``slots`` streams, and batches over any of them. For one thread at a time.

    Args:
        decoder: without a unit.
        max_batch: patches in the largest batch that has a graph.
        pieces: patches of each stream that have graphs.
        graphs: capture CUDA graphs; without a GPU there are none. Batches without a graph run eagerly.
    """

    def __init__(
        self,
        decoder: StreamingDecoder,
        config: VoxCPM2Config,
        slots: int,
        *,
        max_batch: int = 1,
        pieces: Sequence[int] = (1,),
        graphs: bool = True,
    ) -> None:
        self._decoder = decoder
        self._state = decoder.new_state(slots)
        self.patch_shape = (config.patch_size, config.feat_dim)
        self.sample_rate = config.audio_vae_config.out_sample_rate
        self.samples_per_patch = config.patch_size * decoder.hop
        self._packing = Packing(self.patch_shape)
        self._lanes = itertools.cycle([Lane(decoder.device) for _ in range(LANES)])
        self._graphs: CapturedSteps | None = None
        if graphs and decoder.device.type == "cuda":
            shapes = graph_shapes(max_batch, pieces)
            with torch.inference_mode():
                self._graphs = CapturedSteps(
                    self._advance, shapes, self._packing, self.samples_per_patch, decoder.device
                )

    @classmethod
    def from_checkpoint(cls, folder: Path, *, slots: int, device: str = "cpu", **batches: Any) -> VoxCPM2Codec:
        """``batches``: see the class."""
        config = VoxCPM2Config.from_checkpoint(folder)
        return cls(StreamingDecoder(load_audio_vae(folder, device=device)), config, slots, **batches)

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        """A new stream begins in ``slot``. Work for the old one that still runs on a GPU comes before this."""
        self._state.rows[slot] = 0.0

    @torch.inference_mode()
    def launch(self, patches: Tensor, slots: Sequence[int]) -> AudioBatch:
        """Begins to decode the next patches (B, T, P, D) fp32 of the streams in ``slots`` (B distinct)."""
        batch = (len(slots), patches.shape[1])
        lane = next(self._lanes)
        if lane.batch is not None:
            lane.batch.result()
        captured = None if self._graphs is None else self._graphs.fitting(*batch)
        inputs = lane.pack(self._packing, captured or batch, patches, slots, SCRATCH_SLOT)
        if self._graphs is not None and captured is not None:
            audio = self._graphs.replay(captured, inputs)
        else:
            packed = self._packing.open(inputs.to(self._decoder.device, non_blocking=True), *batch)
            audio = self._advance(packed.patches, packed.slots)
        return lane.collect(audio[: len(slots)])

    def decode(self, patches: Tensor, slots: Sequence[int]) -> Tensor:
        """The next patches (B, T, P, D) fp32 of the streams in ``slots`` (B distinct) -> samples (B, N) fp32."""
        return self.launch(patches, slots).result()

    def _advance(self, patches: Tensor, slots: Tensor) -> Tensor:
        return self._decoder.decode(patches.flatten(1, 2).transpose(1, 2), self._state, slots)
