"""From a request's text to tokens, and how long the speech may become."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from ...errors import SpeechError, invalid
from ...long_text import LongText, Segment, cut
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
FOLLOW_SECONDS = 10.0
"""So much of its own beginning is enough for a long speech to keep its voice."""
EXTRA_FRAMES = 10
"""Added to the cap, so that the shortest texts are not cut (upstream)."""


class FrontendParameters(CheckpointParameters):
    max_text_chars: int = Field(default=4096, ge=1)
    """Of a text that is not cut, and of a prompt's."""
    max_long_text_chars: int = Field(default=50_000, ge=1)
    """Of a text that is cut at sentences and spoken in one stream."""
    segment_chars: int = Field(default=0, ge=0)
    """Longest segment of such a text; 0 takes the checkpoint's."""
    max_instruction_chars: int = Field(default=512, ge=1)
    max_seconds: float = Field(default=120.0, gt=0)
    """The most that a request may ask for, and what it gets when it does not ask."""
    frames_per_token: float = Field(default=6.0, gt=0)
    """Runaway guard: patches allowed for each token of text (upstream's ``retry_badcase_ratio_threshold``)."""
    cfg_value: float = Field(default=2.0, ge=0, le=10)
    inference_steps: int = Field(default=10, ge=2, le=100)
    normalise_text: bool = True


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

    def prepare(self, request: SpeechRequest) -> Segment:
        """Tokens of all text that the talker reads, and the cap on its patches.

        Raises:
            SpeechError: INVALID_ARG where nothing speakable is left of the text, or it does not fit the model.
        """
        return self._segment(request, *self._encode(request))

    def _segment(self, request: SpeechRequest, tokens: list[int], target: list[int]) -> Segment:
        if len(tokens) > self._room:
            # Both share the room; the longer one is to be shortened.
            other = "PROMPT_TEXT" if request.prompt_text is not None else "INSTRUCTION"
            field = other if len(target) * 2 <= len(tokens) else "TEXT"
            raise invalid(field, f"has {len(tokens)} tokens, at most {self._room} fit this model")
        by_text = int(len(target) * self._parameters.frames_per_token + EXTRA_FRAMES)
        by_time = int(request.max_seconds * self._config.frames_per_second)
        return Segment(tokens, max(1, min(by_text, by_time)))

    def prepare_long(self, request: SpeechRequest, *, has_voice: bool) -> tuple[Segment, LongText]:
        """The same for a text of any length: its first segment, and what follows.

        A voice that was given (``has_voice``) is given to every segment: each continues the prompt's recording, or
        takes the reference's timbre, and each hears the instruction. Without one, the later segments take the first
        ones' voice as their reference, and the instruction with it, where the checkpoint can follow a reference.

        Raises:
            SpeechError: as ``prepare``, for any of the segments.
        """
        follows = self._config.follows_reference and not has_voice
        rest = replace(request, instruction=None) if follows else request
        encoded: dict[str, tuple[list[int], list[int]] | None] = {}

        def encode(text: str) -> tuple[list[int], list[int]] | None:
            """None for what has no sound, such as nothing but pictures."""
            if text not in encoded:
                with contextlib.suppress(SpeechError):
                    encoded[text] = self._encode(replace(rest, text=text))
            return encoded.setdefault(text, None)

        def fits(text: str) -> bool:
            both = encode(text)
            return both is None or len(both[0]) <= self._room

        stretches = cut(request.text, self._parameters.segment_chars or self._config.segment_chars, fits)
        first, *later = [text for text in stretches if encode(text)] or [request.text]
        longest = min(int(FOLLOW_SECONDS * self._config.frames_per_second), self._config.max_length // 8)
        return self.prepare(replace(request, text=first)), LongText(
            more=[self._segment(rest, *both) for text in later if (both := encode(text))],
            follow_frames=longest if follows else 0,
            frames_per_second=self._config.frames_per_second,
            max_frames=int(request.max_seconds * self._config.frames_per_second) if request.is_limited else None,
        )

    def check_voice(self, voice: Voice) -> None:
        """
        Raises:
            VoiceFileError: this checkpoint cannot speak in the voice.
        """
        check_voice(voice, self._patch_shape)

    def voice_outputs(self, voice: Voice | None) -> Mapping[str, Array]:
        """What the talker is given of a stored voice: latents (N, P, D), of no patch where there are none."""
        return voice_outputs(voice, self._patch_shape)

    def _encode(self, request: SpeechRequest) -> tuple[list[int], list[int]]:
        """Tokens of all that the talker reads, and of the text alone."""
        text = self._clean("TEXT", request.text)
        target = self._tokenizer.encode(text)
        if request.prompt_text is not None:
            return self._tokenizer.encode(self._clean("PROMPT_TEXT", request.prompt_text) + text), target
        if request.instruction is not None:
            # Voice design: the model was trained on instructions in parentheses before the text.
            return self._tokenizer.encode(f"({self._clean('INSTRUCTION', request.instruction)}){text}"), target
        return target, target

    @property
    def _room(self) -> int:
        """Tokens that a prompt may have."""
        return self._config.max_length // 2

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
