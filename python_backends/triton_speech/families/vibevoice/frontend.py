"""From a request's script to tokens, and how long the speech may become. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from ...errors import invalid
from ...long_text import LongText, Segment
from ...parameters import CheckpointParameters
from ...request import NumberField, SpeechRequest
from ...text import normalise
from ...voices.voice import Array, Voice, VoiceFileError
from .cast import DEFAULT_VOICE, count_voices, number_rows
from .config import VibeVoiceConfig
from .long_script import cut_script
from .prompt import write_turn, write_words
from .script import Script, Turn, choose_voices, read_script
from .settings import FIELDS
from .tokenizer import Controls, Tokenizer, read_controls

REFERENCE = "REFERENCE_LATENTS"
VOICE_MODES = {"reference": frozenset({REFERENCE})}
EXTRA_FRAMES = 20
"""Allowed above those for the tokens: a short text may be spoken slowly."""


class FrontendParameters(CheckpointParameters):
    """Of the deployment."""

    max_text_chars: int = Field(default=4096, ge=1)
    """Of a script for the ensemble."""
    max_long_text_chars: int = Field(default=50_000, ge=1)
    """Of a script for the front door."""
    segment_tokens: int = Field(default=0, ge=0)
    """Longest stretch of a script with voices that is spoken in one go; 0 takes a quarter of the model's positions."""
    max_instruction_chars: int = Field(default=512, ge=1)
    """Of what this model refuses in any case."""
    max_seconds: float = Field(default=1200.0, gt=0)
    """The most that a request may ask for, and what it gets when it does not ask."""
    frames_per_token: float = Field(default=8.0, gt=0)
    """Runaway guard: frames allowed for each token of text."""
    normalise_text: bool = True


class VibeVoiceFrontend:
    sampling: Sequence[NumberField] = FIELDS
    built_in_voices: Sequence[str] = (DEFAULT_VOICE,)

    def __init__(
        self, tokenizer: Tokenizer, controls: Controls, config: VibeVoiceConfig, parameters: FrontendParameters
    ) -> None:
        self._tokenizer, self._controls = tokenizer, controls
        self._config, self._parameters = config, parameters

    @classmethod
    def from_checkpoint(cls, folder: Path, parameters: FrontendParameters) -> VibeVoiceFrontend:
        """
        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is not usable.
        """
        config = VibeVoiceConfig.from_checkpoint(folder)
        size = config.decoder_config.vocab_size
        return cls(Tokenizer.from_checkpoint(folder, size), read_controls(folder, size), config, parameters)

    def prepare(self, request: SpeechRequest) -> Segment:
        """
        Raises:
            SpeechError: INVALID_ARG: the script holds nothing or is too long, does not fit the voices, or the request
                has fields that this model does not follow.
        """
        script, chosen = self._read(request)
        return self._segment(script, chosen, request, "")

    def prepare_long(self, request: SpeechRequest, *, has_voice: bool) -> tuple[Segment, LongText]:
        """The same of a script of any length. One whose speakers have voices is cut between turns where it is too long.

        Without voices it is one segment, for the model would give the speakers other voices in each.

        Raises:
            SpeechError: as ``prepare``.
        """
        script, chosen = self._read(request)
        scripts = [script]
        if chosen:
            scripts = cut_script(script, self._count, self._parameters.segment_tokens or self._room // 2)
        hint = "" if chosen else " in one go; a script whose speakers have voices may be longer"
        first, *more = [self._segment(part, chosen, request, hint) for part in scripts]
        rate = self._config.frames_per_second
        limit = int(request.max_seconds * rate) if request.is_limited else None
        return first, LongText(more=more, follow_frames=0, frames_per_second=rate, max_frames=limit)

    @property
    def _room(self) -> int:
        """Tokens of a segment: the other half of the positions is for its speech."""
        return self._config.talker_facts.length // 2

    def _read(self, request: SpeechRequest) -> tuple[Script, tuple[int, ...]]:
        """The script, and the number of each speaker's voice; none where the model chooses."""
        for name, value in (("PROMPT_TEXT", request.prompt_text), ("INSTRUCTION", request.instruction)):
            if value is not None:
                raise invalid(name, "is not followed by this model; a voice sample needs no transcript")
        script = read_script(request.text, normalise if self._parameters.normalise_text else str.strip)
        return script, choose_voices(script, *count_voices(request))

    def _segment(self, script: Script, chosen: Sequence[int], request: SpeechRequest, hint: str) -> Segment:
        vocabulary = self._config.decoder_config.vocab_size
        words = write_words(script, chosen, self._tokenizer, self._controls, vocabulary)
        count = len(words.tokens)
        if count > self._room:
            raise invalid("TEXT", f"has {count} tokens, at most {self._room} fit this model{hint}")
        by_text = int(count * self._parameters.frames_per_token + EXTRA_FRAMES)
        by_time = int(request.max_seconds * self._config.frames_per_second)
        return Segment(words.pack(), max(1, min(by_text, by_time)))

    def _count(self, turn: Turn) -> int:
        return len(self._tokenizer.encode(write_turn(turn)))

    def check_voice(self, voice: Voice) -> None:
        """
        Raises:
            VoiceFileError: this checkpoint cannot speak in the voice.
        """
        if voice.mode not in VOICE_MODES or set(voice.tensors) != VOICE_MODES[voice.mode]:
            raise VoiceFileError(f"holds {', '.join(voice.tensors) or 'nothing'} for the mode {voice.mode!r}")
        array, width = voice.tensors[REFERENCE], 1 + self._config.acoustic_tokenizer_config.vae_dim
        if array.dtype != np.float32 or array.shape[1:] != (1, width) or len(array) == 0:
            raise VoiceFileError(
                f"has {REFERENCE} of {array.dtype} {list(array.shape)}; the checkpoint needs float32 [n, 1, {width}]"
            )
        if not np.isfinite(array).all():
            raise VoiceFileError(f"has NaN or infinite values in {REFERENCE}")
        if array[:, 0, 0].any():
            raise VoiceFileError(f"has numbers other than 0 for its only speaker in {REFERENCE}")

    def voice_outputs(self, voice: Voice | None) -> Mapping[str, Array]:
        """What the talker is given of a stored voice; of no rows where there is nothing."""
        return self.cast_outputs([voice])

    def cast_outputs(self, voices: Sequence[Voice | None]) -> Mapping[str, Array]:
        """The same of several, each row with the number of its voice; of those that are None there are no rows."""
        nothing = np.zeros((0, 1, 1 + self._config.acoustic_tokenizer_config.vae_dim), dtype=np.float32)
        rows = [number_rows(one.tensors[REFERENCE], place) for place, one in enumerate(voices) if one is not None]
        return {REFERENCE: np.concatenate([nothing, *rows])}
