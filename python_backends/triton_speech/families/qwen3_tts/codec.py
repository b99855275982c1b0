"""The codec of Qwen3-TTS: frames of codes to audio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..slot_codec import SlotCodec
from .checkpoint import load_speech_decoder
from .codec_config import SpeechTokenizerConfig
from .streaming_decoder import StreamingDecoder


class Qwen3TTSCodec(SlotCodec):
    """Decodes for ``slots`` streams; ``batches``: see ``SlotCodec``."""

    def __init__(self, decoder: StreamingDecoder, sample_rate: int, slots: int, **batches: Any) -> None:
        self._decoder = decoder
        self._state = decoder.new_state(slots)
        super().__init__(self._state.rows, (1, decoder.groups), sample_rate, decoder.hop, **batches)

    @classmethod
    def from_checkpoint(cls, folder: Path, *, slots: int, device: str = "cpu", **batches: Any) -> Qwen3TTSCodec:
        config = SpeechTokenizerConfig.from_checkpoint(folder)
        decoder = StreamingDecoder(load_speech_decoder(folder, device=device))
        return cls(decoder, config.output_sample_rate, slots, **batches)

    def _advance(self, patches: Tensor, slots: Tensor) -> Tensor:
        # Codes travel as fp32, which holds each of them exactly.
        return self._decoder.decode(patches[:, :, 0].to(torch.int64), self._state, slots)
