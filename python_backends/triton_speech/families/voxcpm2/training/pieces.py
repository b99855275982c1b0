"""Random pieces of the speech for the AudioVAE, at both of its rates, kept where they are used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..audio_vae import AudioVAE
from .speakers import SAMPLE_RATE
from .speech import read_shards


class Pieces:
    """All shards that there are by now, as int16 on ``device``."""

    def __init__(self, folder: Path, vae: AudioVAE, device: torch.device) -> None:
        self._folder, self._device = folder, device
        self._rates = vae.config.sample_rate, vae.config.out_sample_rate
        self._hops = vae.encoder_hop, vae.decoder_hop
        self._known: set[Path] = set()
        self._audio: list[tuple[Tensor, Tensor]] = []
        self._frames: list[int] = []

    def poll(self) -> int:
        """Takes up new shards; returns how many there are."""
        for shard in read_shards(self._folder, self._known):
            frames = len(shard.samples) * self._rates[0] // (SAMPLE_RATE * self._hops[0])
            both = [
                torch.from_numpy(_fitted(soxr.resample(shard.samples, SAMPLE_RATE, rate), frames * hop)).to(
                    self._device
                )
                for rate, hop in zip(self._rates, self._hops, strict=True)
            ]
            self._audio.append((both[0], both[1]))
            self._frames.append(frames)
        return len(self._audio)

    def draw(self, batch: int, frames: int, source: np.random.Generator) -> tuple[Tensor, Tensor]:
        """What the encoder hears (B, F hop) and what the decoder is to make of it (B, F hop'), fp32."""
        lengths = np.maximum(np.array(self._frames) - frames, 0)
        shard = int(source.choice(len(lengths), p=lengths / lengths.sum()))
        begins = torch.from_numpy(source.integers(0, lengths[shard], (batch, 1))).to(self._device)
        heard, wanted = (
            audio[begins * hop + torch.arange(frames * hop, device=self._device)].float() / 32768
            for audio, hop in zip(self._audio[shard], self._hops, strict=True)
        )
        return heard, wanted


def _fitted(samples: NDArray[np.int16], count: int) -> NDArray[np.int16]:
    return np.pad(samples[:count], (0, max(0, count - len(samples))))
