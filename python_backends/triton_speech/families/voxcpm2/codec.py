"""The codec of VoxCPM2: latent patches to audio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ..slot_codec import SlotCodec
from .checkpoint import load_audio_vae
from .config import VoxCPM2Config
from .streaming_decoder import StreamingDecoder


class VoxCPM2Codec(SlotCodec):
    """Decodes for ``slots`` streams.

    Args:
        decoder: without a unit.
        batches: see ``SlotCodec``.
    """

    def __init__(self, decoder: StreamingDecoder, config: VoxCPM2Config, slots: int, **batches: Any) -> None:
        self._decoder = decoder
        self._state = decoder.new_state(slots)
        super().__init__(
            self._state.rows,
            (config.patch_size, config.feat_dim),
            config.audio_vae_config.out_sample_rate,
            config.patch_size * decoder.hop,
            **batches,
        )

    @classmethod
    def from_checkpoint(cls, folder: Path, *, slots: int, device: str = "cpu", **batches: Any) -> VoxCPM2Codec:
        """``batches``: see ``SlotCodec``."""
        config = VoxCPM2Config.from_checkpoint(folder)
        return cls(StreamingDecoder(load_audio_vae(folder, device=device)), config, slots, **batches)

    def _advance(self, patches: Tensor, slots: Tensor) -> Tensor:
        return self._decoder.decode(patches.flatten(1, 2).transpose(1, 2), self._state, slots)
