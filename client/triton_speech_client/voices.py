"""Stored voices: what the server tells of one, and the requests to its model ``voices``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from triton_speech_client.audio_source import AudioSource
from triton_speech_client.errors import InvalidRequest, ServerError
from triton_speech_client.request import build_tensors

if TYPE_CHECKING:
    from typing_extensions import Unpack

MODEL = "voices"
RESULT = "RESULT"
ADD_SECONDS = 120.0
"""Limit of a call that encodes recordings."""


class Recordings(TypedDict, total=False):
    """What a voice is made from: ``reference``, or ``prompt_audio`` with ``prompt_text``, or all three."""

    reference: AudioSource | None
    prompt_audio: AudioSource | None
    prompt_text: str | None
    family: str | None
    """The model family that is to speak in it; may be left out where the server has only one."""


@dataclass(frozen=True)
class Voice:
    """A voice as the server describes it. ``problem`` is empty for one that can be spoken in."""

    name: str
    family: str = ""
    mode: str = ""
    """``built_in``, or what the recordings are used for: ``reference``, ``continuation``, ..."""
    version: str = ""
    """Changes with every ``add``."""
    created: str = ""
    """UTC, ISO 8601."""
    frames: Mapping[str, int] = field(default_factory=dict)
    """Length of what the recordings were encoded to, by tensor."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each recording's file, by input."""
    prompt_text: str | None = None
    problem: str = ""
    replaced: bool = False
    """Of the answer to ``add``: there was a voice of this name."""

    @property
    def usable(self) -> bool:
        return not self.problem


def build_command(command: str, name: str | None = None, **recordings: Unpack[Recordings]) -> dict[str, Any]:
    """The input tensors of one operation, as object arrays of one ``bytes``.

    Raises ``InvalidRequest`` for a value of the wrong type or a recording that cannot be read.
    """
    family = recordings.pop("family", None)
    tensors = {"COMMAND": _text("COMMAND", command)}
    if name is not None:
        tensors["NAME"] = _text("NAME", name)
    if family is not None:
        tensors["FAMILY"] = _text("FAMILY", family)
    if unknown := set(recordings) - set(Recordings.__annotations__):
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; known are {', '.join(Recordings.__annotations__)}")
    audio = build_tensors("", **recordings)  # type: ignore[misc]
    return tensors | {name: tensor for name, tensor in audio.items() if name != "TEXT"}


def read_voice(result: bytes) -> Voice:
    """The voice that an answer describes."""
    return _voice(_read(result))


def read_voices(result: bytes) -> list[Voice]:
    """The voices that the answer to ``list`` describes."""
    return [_voice(entry) for entry in _read(result).get("voices", [])]


def _text(name: str, value: Any) -> npt.NDArray[Any]:
    if not isinstance(value, str):
        raise InvalidRequest(name, f"is of type {type(value).__name__}; a string is needed")
    try:
        return np.array([value.encode("utf-8")], dtype=np.object_)
    except UnicodeEncodeError as e:
        raise InvalidRequest(name, f"cannot be written as UTF-8: {e.reason} at {e.start}") from e


def _read(result: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(result))
    except (ValueError, TypeError) as e:
        raise ServerError("the answer of the model voices is not JSON") from e


def _voice(entry: Mapping[str, Any]) -> Voice:
    # A newer server may tell more.
    return Voice(**{name: value for name, value in entry.items() if name in Voice.__dataclass_fields__})
