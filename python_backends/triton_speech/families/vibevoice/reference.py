"""Audio of a speaker to the features that the talker reads of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import invalid
from ..noise import gaussian
from .cast import join_rows
from .checkpoint import load_listener
from .config import SAMPLE_RATE
from .model import VibeVoiceModel

Role = Literal["reference", "prompt"]
SEED = 0
"""Of the noise on a voice: the same recording is the same voice, always."""
_SPREAD = 0.8
_QUIET = 1e-6


class ReferenceEncoder:
    """Encodes recordings at ``sample_rate`` Hz, mono. For one thread at a time.

    Rows are (1, 1 + D): the number of the speaker, 0 here, and the features of a frame.
    """

    def __init__(self, model: VibeVoiceModel, decibels: float | None) -> None:
        self._model, self._decibels = model, decibels
        config = model.config.acoustic_tokenizer_config
        # A recording's spread is itself drawn (upstream's "gaussian"), by a deviation that is wider by 1 / 0.8.
        self._spread = config.fix_std / _SPREAD if config.std_dist_type == "gaussian" else 0.0
        self.sample_rate = SAMPLE_RATE
        self.patch_shape = (1, 1 + config.vae_dim)

    @classmethod
    def from_checkpoint(cls, folder: Path, *, device: str = "cpu") -> ReferenceEncoder:
        """
        Raises:
            FileNotFoundError: a file is missing.
            ValueError: something in the checkpoint does not fit.
        """
        return cls(load_listener(folder, device=device).model, read_loudness(folder))

    def warm_up(self) -> None:
        """Encodes a second of silence, so that no caller pays for torch's start."""
        self.encode(np.zeros(self.sample_rate, dtype=np.float32), "reference")

    def encode(self, samples: NDArray[np.float32], role: Role) -> NDArray[np.float32]:
        """samples (N,) -> rows (T, 1, 1 + D) for speaker 0.

        Raises:
            SpeechError: INVALID_ARG for a prompt: this model does not go on with a recording.
        """
        if role == "prompt":
            raise invalid("PROMPT_AUDIO", "is not followed by this model; give the recording as a voice sample")
        features = self.features(samples).cpu().numpy()
        return np.pad(features, ((0, 0), (1, 0)))[:, None]

    def join(self, stored: NDArray[np.float32], recorded: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Rows of stored voices and of recordings, each row with the number of its voice."""
        return join_rows(stored, recorded)

    @torch.inference_mode()
    def features(self, samples: NDArray[np.float32]) -> Tensor:
        """samples (N,), N >= 1 -> (T, D), scaled as the model reads them; the last frame may be part silence."""
        loud = samples if self._decibels is None else normalise_loudness(samples, self._decibels)
        scale = self._model.speech_scaling_factor
        audio = torch.from_numpy(np.ascontiguousarray(loud)).to(scale.device)
        mean = self._model.acoustic_tokenizer.encoder(audio.unsqueeze(0))[0]
        frames = torch.arange(len(mean) + 1, device=mean.device)
        noise = gaussian(torch.full_like(frames, SEED), frames, mean.shape[1])
        latents = mean + self._spread * noise[0, 0] * noise[1:]
        return (latents + self._model.speech_bias_factor) * scale


def read_loudness(folder: Path) -> float | None:
    """The level in dB of full scale that ``preprocessor_config.json`` asks for; None for recordings as they are.

    Raises:
        ValueError: the file is not readable.
    """
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return -25.0
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        level = fields.get("audio_processor", {}).get("target_dB_FS", -25)
        return float(level) if fields.get("db_normalize", True) else None
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"preprocessor_config.json of checkpoint {folder.name!r} is not readable: {error}") from error


def normalise_loudness(samples: NDArray[np.float32], decibels: float) -> NDArray[np.float32]:
    """samples (N,) at a mean level of ``decibels`` of full scale, or less where peaks would pass full scale."""
    level = np.sqrt(np.mean(samples**2))
    scaled = samples * np.float32(10 ** (decibels / 20) / (level + _QUIET))
    peak = np.max(np.abs(scaled), initial=0.0)
    return (scaled / (peak + _QUIET) if peak > 1 else scaled).astype(np.float32)
