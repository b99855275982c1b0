"""The request that every pipeline takes: each field, its limits and its error text, in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import invalid
from .streaming.schedule import ChunkSchedule
from .voices.name import MAX_NAME_CHARS, check_name

Array = NDArray[np.generic]


@dataclass(frozen=True)
class NumberField:
    """A finite number between two limits, both included."""

    name: str
    low: float
    high: float
    default: float
    integer: bool = False

    def read(self, inputs: Mapping[str, Array]) -> float:
        if self.name not in inputs:
            return self.default
        return self.check(float(_single(self.name, inputs[self.name])))

    def check(self, value: float) -> float:
        """``value`` itself.

        Raises:
            SpeechError: INVALID_ARG, saying what is allowed.
        """
        if not math.isfinite(value):
            raise invalid(self.name, f"{value} is not a number, allowed is {self._limits}")
        if not self.low <= value <= self.high:
            shown = f"{value:.0f}" if self.integer else f"{value:.6g}"
            raise invalid(self.name, f"{shown} is out of range, allowed is {self._limits}")
        return value

    @property
    def _limits(self) -> str:
        return f"{self.low:g} to {self.high:g}"


NORMAL, HIGH, CONTINUES = 0, 1, 2
"""Who goes first where streams wait for a place. The last is a speech that has begun; no caller can ask for it."""
PRIORITY = NumberField("PRIORITY", NORMAL, HIGH, NORMAL, integer=True)


@dataclass(frozen=True)
class RequestLimits:
    """What a deployment allows."""

    max_text_chars: int = 4096
    max_instruction_chars: int = 512
    max_seconds: float = 120.0
    max_prompt_chars: int = 4096
    max_voices: int = 1
    """Of the family's: in VOICE, and in REFERENCE_AUDIO."""


@dataclass(frozen=True)
class SpeechRequest:
    """A request whose fields are all valid. Absent fields are None, which differs from empty."""

    text: str
    voice: str | None = None
    """The first of ``voices``."""
    voices: tuple[str, ...] = ()
    """Names in VOICE, in their order."""
    references: int = 0
    """Recordings in REFERENCE_AUDIO."""
    prompt_text: str | None = None
    instruction: str | None = None
    language: str | None = None
    seed: int | None = None
    max_seconds: float = 120.0
    is_limited: bool = False
    """Whether the caller itself set ``max_seconds``."""
    priority: int = 0
    chunk_schedule: ChunkSchedule | None = None
    has_prompt_audio: bool = False
    sampling: Mapping[str, float] = field(default_factory=dict)
    """The fields that the family declares, by name."""


def parse_request(inputs: Mapping[str, Array], limits: RequestLimits, sampling: Sequence[NumberField]) -> SpeechRequest:
    """Reads a request from its tensors.

    Args:
        inputs: arrays by input name; BYTES as object arrays.
        limits: of this deployment.
        sampling: the fields that the family declares.

    Raises:
        SpeechError: INVALID_ARG, naming the first field that is wrong.
    """
    if "TEXT" not in inputs:
        raise invalid("TEXT", "is missing")
    text = _text("TEXT", inputs, limits.max_text_chars) or ""
    prompt_text = _text("PROMPT_TEXT", inputs, limits.max_prompt_chars)
    instruction = _text("INSTRUCTION", inputs, limits.max_instruction_chars)
    has_prompt_audio = "PROMPT_AUDIO" in inputs
    if has_prompt_audio and prompt_text is None:
        raise invalid("PROMPT_TEXT", "is missing; PROMPT_AUDIO needs its transcript")
    if prompt_text is not None and not has_prompt_audio:
        raise invalid("PROMPT_AUDIO", "is missing; PROMPT_TEXT is the transcript of it")
    if instruction is not None and prompt_text is not None:
        raise invalid("INSTRUCTION", "cannot be given together with PROMPT_TEXT")
    seconds = NumberField("MAX_SECONDS", 0.1, limits.max_seconds, limits.max_seconds)
    voices = _voices("VOICE", inputs, limits.max_voices)
    return SpeechRequest(
        text=text,
        voice=voices[0] if voices else None,
        voices=voices,
        references=_count("REFERENCE_AUDIO", inputs, limits.max_voices),
        prompt_text=prompt_text,
        instruction=instruction,
        language=_text("LANGUAGE", inputs, 16),
        seed=int(_single("SEED", inputs["SEED"])) if "SEED" in inputs else None,
        max_seconds=seconds.read(inputs),
        is_limited="MAX_SECONDS" in inputs,
        priority=int(PRIORITY.read(inputs)),
        chunk_schedule=read_schedule("CHUNK_SCHEDULE", inputs),
        has_prompt_audio=has_prompt_audio,
        sampling={one.name: one.read(inputs) for one in sampling},
    )


def _single(name: str, array: Array) -> Any:
    if array.size != 1:
        raise invalid(name, f"has {array.size} elements, must have 1")
    return array.reshape(-1)[0]


def _count(name: str, inputs: Mapping[str, Array], most: int) -> int:
    """Elements of a list; 0 where it is absent."""
    if name not in inputs:
        return 0
    size = int(inputs[name].size)
    if not 1 <= size <= most:
        allowed = "must have 1" if most == 1 else f"1 to {most} are allowed"
        raise invalid(name, f"has {size} elements, {allowed}")
    return size


def _text(name: str, inputs: Mapping[str, Array], max_chars: int) -> str | None:
    return None if name not in inputs else _read_text(name, _single(name, inputs[name]), max_chars)


def _read_text(name: str, raw: Any, max_chars: int) -> str:
    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else str(raw)
    except UnicodeDecodeError as error:
        raise invalid(name, f"is not UTF-8 (byte {error.start})") from error
    if len(text) > max_chars:
        raise invalid(name, f"has {len(text)} characters, at most {max_chars} are allowed")
    if not text.strip():
        raise invalid(name, "is empty" if not text else "is blank")
    return text


def _voices(name: str, inputs: Mapping[str, Array], most: int) -> tuple[str, ...]:
    if not _count(name, inputs, most):
        return ()
    return tuple(check_name(name, _read_text(name, raw, MAX_NAME_CHARS)) for raw in inputs[name].reshape(-1))


def read_schedule(name: str, inputs: Mapping[str, Array]) -> ChunkSchedule | None:
    """The chunk schedule of a request, None when it is absent.

    Raises:
        SpeechError: INVALID_ARG, saying what is allowed.
    """
    if name not in inputs:
        return None
    try:
        return ChunkSchedule(tuple(int(size) for size in inputs[name].reshape(-1)))
    except ValueError as error:
        raise invalid(name, str(error)) from error
