"""From a request's text to tokens and controls, and how long the speech may become. Needs no torch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from ...errors import SpeechError, invalid, unknown
from ...long_text import LongText, Segment, cut
from ...parameters import CheckpointParameters
from ...request import NumberField, SpeechRequest
from ...text import normalise
from ...voices.voice import Array, Voice
from .codec_config import SpeechTokenizerConfig
from .config import Qwen3TTSConfig
from .prompt import Words
from .settings import (
    CODES_TEMPERATURE,
    CODES_TOP_K,
    CODES_TOP_P,
    FIELDS,
    REPETITION_PENALTY,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)
from .tokenizer import Tokenizer
from .voice import check_voice, voice_outputs

AUTO = "auto"
DEFAULT_VOICE = "default"
GENERATION_FILE = "generation_config.json"
PUBLISHED = {
    TEMPERATURE: "temperature",
    TOP_K: "top_k",
    TOP_P: "top_p",
    REPETITION_PENALTY: "repetition_penalty",
    CODES_TEMPERATURE: "subtalker_temperature",
    CODES_TOP_K: "subtalker_top_k",
    CODES_TOP_P: "subtalker_top_p",
}
"""Under which names ``generation_config.json`` has the defaults."""
NON_STREAMING = {"base": False, "custom_voice": True, "voice_design": True}
"""Upstream's defaults for each kind of model."""
EXTRA_FRAMES = 25
"""Added to the cap by the text's length, so that the shortest texts are not cut. Upstream has no such cap."""


SEGMENT_CHARS = 600


class FrontendParameters(CheckpointParameters):
    max_text_chars: int = Field(default=4096, ge=1)
    """Of a text that is not cut, and of a prompt's."""
    max_long_text_chars: int = Field(default=50_000, ge=1)
    """Of a text that is cut at sentences and spoken in one stream."""
    segment_chars: int = Field(default=SEGMENT_CHARS, ge=8)
    """Longest segment of such a text."""
    max_instruction_chars: int = Field(default=512, ge=1)
    max_seconds: float = Field(default=120.0, gt=0)
    """The most that a request may ask for, and what it gets when it does not ask."""
    frames_per_token: float = Field(default=12.0, gt=0)
    """Runaway guard: frames allowed for each token of text."""
    normalise_text: bool = True
    non_streaming_mode: bool | None = None
    """Whether all text stands before the first frame; None takes the model's own way. Answers stream either way."""


class Qwen3TTSFrontend:
    def __init__(
        self,
        tokenizer: Tokenizer,
        config: Qwen3TTSConfig,
        parameters: FrontendParameters,
        *,
        frames_per_second: float,
        published: Mapping[str, Any],
    ) -> None:
        self._tokenizer, self._config, self._parameters = tokenizer, config, parameters
        self._frames_per_second = frames_per_second
        self.sampling: Sequence[NumberField] = tuple(
            replace(field, default=field.check(float(published.get(PUBLISHED[field], field.default))))
            for field in FIELDS
        )
        speakers = sorted(config.talker_config.spk_id)
        self.built_in_voices: Sequence[str] = speakers or (DEFAULT_VOICE,)

    @classmethod
    def from_checkpoint(cls, folder: Path, parameters: FrontendParameters) -> Qwen3TTSFrontend:
        """
        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is not usable.
        """
        config, codec = Qwen3TTSConfig.from_checkpoint(folder), SpeechTokenizerConfig.from_checkpoint(folder)
        path = folder / GENERATION_FILE
        return cls(
            Tokenizer.from_checkpoint(folder, config),
            config,
            parameters,
            frames_per_second=codec.output_sample_rate / codec.decode_upsample_rate,
            published=json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {},
        )

    def prepare(self, request: SpeechRequest) -> Segment:
        """The text side of the prompt, packed (``prompt.Words``), and the cap on its frames.

        Raises:
            SpeechError: INVALID_ARG or NOT_FOUND where the request does not fit the model.
        """
        return self._segment(request, self._words_of(request))

    def prepare_long(self, request: SpeechRequest, *, has_voice: bool) -> tuple[Segment, LongText]:
        """The same for a text of any length: its first segment, and what follows.

        Each segment hears speaker, instruction and recording anew. Without any of them the voice may change from one to
        the next: these models take a voice from a recording's vector, and not from what they have made themselves.

        Raises:
            SpeechError: as ``prepare``, for any of the segments.
        """
        prepared: dict[str, Words | None] = {}

        def words_of(text: str) -> Words | None:
            """None for what has no sound, such as nothing but pictures."""
            if text not in prepared:
                with contextlib.suppress(SpeechError):
                    prepared[text] = self._words_of(replace(request, text=text))
            return prepared.setdefault(text, None)

        def fits(text: str) -> bool:
            words = words_of(text)
            return words is None or _size(words) <= self._room

        stretches = cut(request.text, self._parameters.segment_chars, fits)
        first, *later = [text for text in stretches if words_of(text)] or [request.text]
        return self.prepare(replace(request, text=first)), LongText(
            more=[self._segment(request, words) for text in later if (words := words_of(text))],
            follow_frames=0,
            frames_per_second=self._frames_per_second,
            max_frames=int(request.max_seconds * self._frames_per_second) if request.is_limited else None,
        )

    def _words_of(self, request: SpeechRequest) -> Words:
        return self.words(
            request.text,
            language=request.language,
            voice=request.voice,
            instruction=request.instruction,
            reference_text=request.prompt_text,
        )

    def _segment(self, request: SpeechRequest, words: Words) -> Segment:
        if (size := _size(words)) > self._room:
            others = {"PROMPT_TEXT": words.reference_text or (), "INSTRUCTION": words.instruction, "TEXT": words.text}
            field = max(others, key=lambda name: len(others[name]))
            raise invalid(field, f"and what goes with it have {size} tokens, at most {self._room} fit this model")
        by_text = int(len(words.text) * self._parameters.frames_per_token + EXTRA_FRAMES)
        return Segment(words.pack(), max(1, min(by_text, int(request.max_seconds * self._frames_per_second))))

    @property
    def _room(self) -> int:
        """Text tokens that a prompt may have."""
        return self._config.talker_facts.length // 2

    def words(
        self,
        text: str,
        *,
        language: str | None = None,
        voice: str | None = None,
        instruction: str | None = None,
        reference_text: str | None = None,
        non_streaming: bool | None = None,
    ) -> Words:
        """The text side of a prompt; ``non_streaming`` None takes the deployment's or the model's way.

        Raises:
            SpeechError: INVALID_ARG or NOT_FOUND, naming the field of the request.
        """
        kind = self._config.tts_model_type
        speaker, dialect = self._speaker(voice)
        if instruction is not None and not self._config.follows_instructions:
            raise invalid("INSTRUCTION", f"is not followed by this {kind} model of size {self._config.tts_model_size}")
        if reference_text is not None and kind != "base":
            raise invalid("PROMPT_TEXT", f"is not followed by this {kind} model, which takes no recordings")
        choices = (non_streaming, self._parameters.non_streaming_mode, NON_STREAMING[kind])
        choice = next(one for one in choices if one is not None)
        encode = self._tokenizer.encode
        before: tuple[int, ...] | None = None
        asked: tuple[int, ...] = ()
        if reference_text is not None:
            before = tuple(encode(self._clean("PROMPT_TEXT", reference_text)))
        if instruction is not None:
            asked = tuple(self._tokenizer.instruction(self._clean("INSTRUCTION", instruction)))
        return Words(
            role=self._tokenizer.role,
            text=tuple(encode(self._clean("TEXT", text))),
            reference_text=before,
            instruction=asked,
            language=self._language(language, dialect),
            speaker=speaker,
            non_streaming=choice,
            vector_size=self._config.talker_config.hidden_size,
        )

    def check_voice(self, voice: Voice) -> None:
        """
        Raises:
            VoiceFileError: this checkpoint cannot speak in the voice.
        """
        check_voice(voice, self._config)

    def voice_outputs(self, voice: Voice | None) -> Mapping[str, Array]:
        """What the talker is given of a stored voice; of no rows where there is nothing."""
        return voice_outputs(voice, self._config)

    def _speaker(self, voice: str | None) -> tuple[int | None, str | None]:
        """The control of a built-in speaker, and its dialect."""
        talker = self._config.talker_config
        if not talker.spk_id:
            return None, None
        known = ", ".join(self.built_in_voices)
        if voice is None:
            raise invalid("VOICE", f"is missing; this model speaks in the voices {known}")
        speakers = {name.lower(): name for name in talker.spk_id}
        if voice.lower() not in speakers:
            raise unknown("VOICE", voice, known)
        name = speakers[voice.lower()]
        return talker.spk_id[name], talker.spk_is_dialect.get(name) or None

    def _language(self, language: str | None, dialect: str | None) -> int | None:
        """The control of a language. A speaker's dialect takes the place of Chinese and of no language."""
        controls = self._config.talker_config.codec_language_id
        name = AUTO if language is None else language.lower()
        if name != AUTO and (name not in controls or "dialect" in name):
            named = ", ".join((AUTO, *(one for one in controls if "dialect" not in one)))
            raise unknown("LANGUAGE", language or "", named)
        if dialect is not None and name in (AUTO, "chinese"):
            name = dialect
        return None if name == AUTO else controls[name]

    def _clean(self, field: str, text: str) -> str:
        # A line break that leads would join the one before it.
        cleaned = normalise(text) if self._parameters.normalise_text else text.lstrip("\r\n")
        if not cleaned:
            raise invalid(field, "holds nothing that can be spoken")
        return cleaned


def _size(words: Words) -> int:
    return len(words.text) + len(words.reference_text or ()) + len(words.instruction)
