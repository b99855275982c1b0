"""The codec as a stage sees it: patches of several streams in, their samples out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .checkpoint import load_audio_vae
from .config import VoxCPM2Config
from .streaming_decoder import StreamingDecoder


class VoxCPM2Codec:
    """Decoder state for ``slots`` streams."""

    def __init__(self, decoder: StreamingDecoder, config: VoxCPM2Config, slots: int, device: torch.device) -> None:
        self._decoder = decoder
        self._state = decoder.new_state(slots)
        self._device = device
        self.patch_shape = (config.patch_size, config.feat_dim)
        self.sample_rate = config.audio_vae_config.out_sample_rate

    @classmethod
    def from_checkpoint(cls, folder: Path, *, slots: int, device: str = "cpu") -> VoxCPM2Codec:
        config = VoxCPM2Config.from_checkpoint(folder)
        # Patch by patch, so that no bit of a stream's samples depends on how it was cut into chunks.
        decoder = StreamingDecoder(load_audio_vae(folder, device=device), unit=config.patch_size)
        return cls(decoder, config, slots, torch.device(device))

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        """Forgets the stream that held a slot."""
        self._decoder.reset(self._state, torch.tensor([slot], device=self._device))

    @torch.inference_mode()
    def decode(self, patches: Tensor, slots: list[int]) -> Tensor:
        """patches (B, T, P, D) of the streams in ``slots`` (B distinct) -> samples (B, N) fp32 on the CPU."""
        latents = patches.to(self._device).flatten(1, 2).transpose(1, 2)
        return self._decoder.decode(latents, self._state, torch.tensor(slots, device=self._device)).cpu()
