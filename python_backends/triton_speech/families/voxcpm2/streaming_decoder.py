"""Exact streaming for the AudioVAE's decoder: each frame is decoded once, and no seam exists.

A causal convolution needs the last frames of its input and nothing else of the past. Those frames, of all
convolutions of one stream, lie side by side in one row of a buffer (the stream's slot), so a step gathers
and scatters whole rows, once. On a GPU in float32 the layers are fused ones (`fused_plan`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import codec_ops
from .audio_vae import AudioVAE, check_latents
from .fused_plan import FusedPlan
from .streaming_plan import Plan


@dataclass(frozen=True)
class DecoderState:
    """What the streams' past has left: ``rows[i]`` belongs to slot i, and is zero where a stream begins.

    Attributes:
        rows: (slots, floats), dtype of the decoder.
    """

    rows: Tensor


class StreamingDecoder:
    """Decodes latents chunk by chunk; the chunks together are what `AudioVAE.decode` gives at once.

    How a stream is cut, and who else is in the batch, changes the last bits of its samples (below 1e-6), since sums
    of different shapes are ordered differently. Calls of one shape throughout give the same bits.

    Build it when `vae` is loaded and in its place: it holds weights arranged anew, in part copies.

    Args:
        vae: float32 (or float64), on the device where decoding shall happen.

    Raises:
        ValueError: `vae` is in half precision.
    """

    def __init__(self, vae: AudioVAE) -> None:
        weight = next(vae.decoder.parameters())
        if weight.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"vae is {weight.dtype}, streaming needs torch.float32 or torch.float64")
        self.latent_dim = vae.config.latent_dim
        self.hop = vae.decoder_hop
        self.device, self.dtype = weight.device, weight.dtype
        self._fused = codec_ops.has_kernels(weight)
        plan = FusedPlan() if self._fused else Plan()
        with torch.no_grad():
            plan.add_decoder(vae)
        self._layers = plan.layers
        self.floats_per_slot = plan.floats

    def new_state(self, slots: int) -> DecoderState:
        """State for `slots` streams at once, all about to begin."""
        shape = (slots, self.floats_per_slot)
        return DecoderState(torch.zeros(shape, dtype=self.dtype, device=self.device))

    def reset(self, state: DecoderState, slots: Tensor) -> None:
        """Lets new streams begin in `slots` (B,) int64."""
        state.rows[slots] = 0.0

    @torch.no_grad()
    def decode(self, latents: Tensor, state: DecoderState, slots: Tensor) -> Tensor:
        """The next T frames of B streams: latents (B, D, T) -> audio (B, T * hop) in [-1, 1].

        Args:
            latents: dtype of `vae`; T >= 1.
            state: changed in the rows of `slots` and nowhere else.
            slots: (B,) int64, where each stream's state lies. Rows that only pad a batch may share a slot
                that no stream uses.

        Raises:
            ValueError: a shape does not fit.
        """
        check_latents(latents, self.latent_dim)
        if slots.shape != latents.shape[:1]:
            raise ValueError(f"slots has shape {tuple(slots.shape)}, latents has {latents.shape[0]} rows")
        rows = state.rows[slots]
        audio = self.step(latents, rows)
        state.rows.index_copy_(0, slots, rows)
        return audio

    def step(self, latents: Tensor, rows: Tensor) -> Tensor:
        """`decode` without the slots: advances `rows` (B, floats_per_slot) in place."""
        old = rows.clone() if self._fused else rows
        x = latents.transpose(1, 2)
        for layer in self._layers:
            x = layer(x, old, rows)
        return x.squeeze(-1)
