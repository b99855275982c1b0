"""Audio of a speaker to latent patches."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from .audio_vae import AudioVAE
from .checkpoint import load_audio_vae
from .config import VoxCPM2Config

Role = Literal["reference", "prompt"]


class ReferenceEncoder:
    """Pads reference audio on the right and prompt audio on the left: speech continues where a prompt ends."""

    def __init__(self, vae: AudioVAE, config: VoxCPM2Config) -> None:
        self._vae = vae
        self._samples = config.patch_size * int(np.prod(config.audio_vae_config.encoder_rates))
        self.sample_rate = config.audio_vae_config.sample_rate
        self.patch_shape = (config.patch_size, config.feat_dim)

    @classmethod
    def from_checkpoint(cls, folder: Path, *, device: str = "cpu") -> ReferenceEncoder:
        return cls(load_audio_vae(folder, device=device), VoxCPM2Config.from_checkpoint(folder))

    def warm_up(self) -> None:
        """Encodes a second of silence, so that no caller pays for torch's start."""
        self.encode(np.zeros(self.sample_rate, dtype=np.float32), "reference")

    @torch.inference_mode()
    def encode(self, samples: NDArray[np.float32], role: Role) -> NDArray[np.float32]:
        """samples (N,) mono at ``sample_rate`` -> patches (T, P, D)."""
        missing = -len(samples) % self._samples
        padded = np.pad(samples, (missing, 0) if role == "prompt" else (0, missing))
        device = next(self._vae.parameters()).device
        latents = self._vae.encode(torch.from_numpy(padded).to(device).unsqueeze(0))
        patches = latents[0].T.reshape(-1, *self.patch_shape)
        return np.ascontiguousarray(patches.cpu().numpy())
