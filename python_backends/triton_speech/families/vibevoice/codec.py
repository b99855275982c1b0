"""The codec as a stage sees it. The talker decodes its frames itself, so nothing is left to do but to hand them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph_use import GraphUse
from .config import SAMPLE_RATE, VibeVoiceConfig


@dataclass(frozen=True)
class Decoded:
    """Samples that are there already."""

    samples: Tensor

    def result(self) -> Tensor:
        return self.samples


class VibeVoiceCodec:
    """Needs no state: patches are (1, 1 + hop), a mark and the samples of a frame."""

    def __init__(self, config: VibeVoiceConfig) -> None:
        self.samples_per_patch = config.acoustic_tokenizer_config.hop
        self.patch_shape = (1, 1 + self.samples_per_patch)
        self.sample_rate = SAMPLE_RATE
        self.graph_use = GraphUse()

    def reset(self, slot: int) -> None:
        """A new stream begins in ``slot``."""

    @torch.inference_mode()
    def launch(self, patches: Tensor, slots: Sequence[int]) -> Decoded:
        """The samples (B, T * hop) of patches (B, T, 1, 1 + hop), within full scale."""
        return Decoded(patches[:, :, 0, 1:].flatten(1).float().clamp(-1, 1).cpu())

    def decode(self, patches: Tensor, slots: Sequence[int]) -> Tensor:
        """The same, waited for."""
        return self.launch(patches, slots).result()
