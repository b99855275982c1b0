"""Audio of a speaker to what the talker hears of it: a vector of the voice, and frames of codes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import invalid
from .checkpoint import load_speaker_encoder, load_speech_encoder
from .codec_config import SpeechTokenizerConfig
from .config import Qwen3TTSConfig, SpeakerEncoderConfig
from .mel import log_mel
from .speaker_encoder import SpeakerEncoder
from .speech_encoder import SpeechEncoder

Role = Literal["reference", "prompt"]
SAMPLE_RATE: int = SpeakerEncoderConfig().sample_rate


class ReferenceEncoder:
    """Encodes recordings at ``sample_rate`` Hz, mono. For one thread at a time."""

    def __init__(self, speaker: SpeakerEncoder, speech: SpeechEncoder, device: torch.device) -> None:
        self._speaker, self._speech, self._device = speaker, speech, device
        self.sample_rate = SAMPLE_RATE
        self.patch_shape = (1, speech.groups)

    @classmethod
    def from_checkpoint(cls, folder: Path, *, device: str = "cpu") -> ReferenceEncoder:
        """
        Raises:
            FileNotFoundError: a file is missing.
            ValueError: the checkpoint follows no recordings, or something in it does not fit.
        """
        rate = SpeechTokenizerConfig.from_checkpoint(folder).input_sample_rate
        if rate != SAMPLE_RATE:
            raise ValueError(f"input_sample_rate is {rate}, that of the speaker encoder {SAMPLE_RATE}")
        speaker = load_speaker_encoder(folder, device=device)
        return cls(speaker, load_speech_encoder(folder, device=device), torch.device(device))

    def warm_up(self) -> None:
        """Encodes a second of silence, so that no caller pays for torch's start."""
        self.encode(np.zeros(self.sample_rate, dtype=np.float32), "prompt")

    def encode(self, samples: NDArray[np.float32], role: Role) -> NDArray[np.float32]:
        """samples (N,), N >= 385 -> rows (n, 1, G) as ``voice`` says: of the vector, for a prompt of codes too."""
        vector = self.speaker_vector(samples).reshape(-1, *self.patch_shape)
        if role == "reference":
            return vector
        codes = self.codes(samples).astype(np.float32).reshape(-1, *self.patch_shape)
        return np.concatenate((vector, codes))

    @torch.inference_mode()
    def speaker_vector(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """samples (N,), N >= 385 -> (H,)."""
        mel = log_mel(self._audio(samples), self._speaker.mel_dim)
        return self._speaker(mel)[0].cpu().numpy()

    @torch.inference_mode()
    def codes(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """samples (N,), N >= 1 -> frames (T, G) of codes; the last one may hear silence after the end."""
        return self._speech(self._audio(samples))[0].cpu().numpy()

    def _audio(self, samples: NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(samples)).to(self._device).unsqueeze(0)


class NoRecordings:
    """In place of an encoder, for a model that speaks in voices of its own."""

    def __init__(self, config: Qwen3TTSConfig) -> None:
        self._kind = config.tts_model_type
        self.sample_rate = SAMPLE_RATE
        self.patch_shape = (1, config.talker_config.num_code_groups)

    def warm_up(self) -> None:
        """Nothing is to be warmed."""

    def encode(self, samples: NDArray[np.float32], role: Role) -> NDArray[np.float32]:
        """
        Raises:
            SpeechError: INVALID_ARG, always.
        """
        raise invalid(f"{role.upper()}_AUDIO", f"is not followed by this {self._kind} model, which takes no recordings")
