"""From a request's text to tokens, and how long the speech may become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from ...errors import invalid
from ...parameters import CheckpointParameters
from ...request import NumberField, SpeechRequest
from ...text import normalise
from ...voices.voice import Array, Voice
from .config import VoxCPM2Config
from .tokenizer import Tokenizer
from .voice import check_voice, voice_outputs

CFG_VALUE = NumberField("CFG_VALUE", 0.0, 10.0, 2.0)
# With one step the solver would return its noise: the first step is always skipped.
INFERENCE_STEPS = NumberField("INFERENCE_STEPS", 2, 100, 10, integer=True)
SAMPLING_INPUTS = (CFG_VALUE.name, INFERENCE_STEPS.name)
"""The fields of a request that this family adds to the contract."""
EXTRA_FRAMES = 10
"""Added to the cap, so that the shortest texts are not cut (upstream)."""


class FrontendParameters(CheckpointParameters):
    max_text_chars: int = Field(default=4096, ge=1)
    max_instruction_chars: int = Field(default=512, ge=1)
    max_seconds: float = Field(default=120.0, gt=0)
    """The most that a request may ask for, and what it gets when it does not ask."""
    frames_per_token: float = Field(default=6.0, gt=0)
    """Runaway guard: patches allowed for each token of text (upstream's ``retry_badcase_ratio_threshold``)."""
    cfg_value: float = Field(default=2.0, ge=0, le=10)
    inference_steps: int = Field(default=10, ge=2, le=100)
    normalise_text: bool = True


@dataclass(frozen=True)
class Prepared:
    tokens: list[int]
    max_frames: int


class VoxCPM2Frontend:
    built_in_voices: Sequence[str] = ("default",)
    """What the checkpoint speaks in when it is given no recording."""

    def __init__(self, tokenizer: Tokenizer, config: VoxCPM2Config, parameters: FrontendParameters) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._parameters = parameters
        self.sampling: Sequence[NumberField] = (
            replace(CFG_VALUE, default=parameters.cfg_value),
            replace(INFERENCE_STEPS, default=parameters.inference_steps),
        )

    @classmethod
    def from_checkpoint(cls, folder: Path, parameters: FrontendParameters) -> VoxCPM2Frontend:
        return cls(Tokenizer.from_checkpoint(folder), VoxCPM2Config.from_checkpoint(folder), parameters)

    def prepare(self, request: SpeechRequest) -> Prepared:
        """Tokens of all text that the talker reads, and the cap on its patches.

        Raises:
            SpeechError: INVALID_ARG where nothing speakable is left of the text, or it does not fit the model.
        """
        text = self._clean("TEXT", request.text)
        target = self._tokenizer.encode(text)
        if request.prompt_text is not None:
            tokens = self._tokenizer.encode(self._clean("PROMPT_TEXT", request.prompt_text) + text)
        elif request.instruction is not None:
            # Voice design: the model was trained on instructions in parentheses before the text.
            tokens = self._tokenizer.encode(f"({self._clean('INSTRUCTION', request.instruction)}){text}")
        else:
            tokens = target
        room = self._config.max_length // 2
        if len(tokens) > room:
            # Both texts share the room; the longer one is to be shortened.
            field = "TEXT" if len(target) * 2 > len(tokens) or request.prompt_text is None else "PROMPT_TEXT"
            raise invalid(field, f"has {len(tokens)} tokens, at most {room} fit this model")
        by_text = int(len(target) * self._parameters.frames_per_token + EXTRA_FRAMES)
        by_time = int(request.max_seconds * self._config.frames_per_second)
        return Prepared(tokens, max(1, min(by_text, by_time)))

    def check_voice(self, voice: Voice) -> None:
        """
        Raises:
            VoiceFileError: this checkpoint cannot speak in the voice.
        """
        check_voice(voice, self._patch_shape)

    def voice_outputs(self, voice: Voice | None) -> Mapping[str, Array]:
        """What the talker is given of a stored voice: latents (N, P, D), of no patch where there are none."""
        return voice_outputs(voice, self._patch_shape)

    @property
    def _patch_shape(self) -> tuple[int, int]:
        return self._config.patch_size, self._config.feat_dim

    def _clean(self, field: str, text: str) -> str:
        if not self._parameters.normalise_text:
            return text
        cleaned = normalise(text)
        if not cleaned:
            raise invalid(field, "holds nothing that can be spoken")
        return cleaned
