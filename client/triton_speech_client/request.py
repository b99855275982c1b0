"""What a request looks like on the wire: the one place for the names and types of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from triton_speech_client.audio_source import AudioSource, audio_file_bytes
from triton_speech_client.errors import InvalidRequest

if TYPE_CHECKING:
    from tritonclient.grpc import InferInput
    from typing_extensions import Unpack


class SpeechOptions(TypedDict, total=False):
    """The optional fields of a request. One that is absent or None is not sent: the server's default holds."""

    voice: str | None
    """Name of a voice stored on the server."""
    reference: AudioSource | None
    """Recording whose timbre is to be taken."""
    prompt_audio: AudioSource | None
    """Recording to be continued; needs ``prompt_text``."""
    prompt_text: str | None
    """What is said in ``prompt_audio``."""
    instruction: str | None
    """Description of the wanted voice or style."""
    language: str | None
    seed: int | None
    """0 to 2**64 - 1. One seed gives the same speech again."""
    cfg_value: float | None
    inference_steps: int | None
    max_seconds: float | None
    """Longest speech, in seconds of audio; the finish reason is then ``length``."""
    chunk_schedule: Sequence[int] | None
    """Frames in the first, second, ... chunk; the last number holds from there on."""


class _Field(NamedTuple):
    name: str
    dtype: type[np.generic]
    kind: str  # "text", "audio", "number" or "numbers"


_FIELDS: Mapping[str, _Field] = {
    "text": _Field("TEXT", np.object_, "text"),
    "voice": _Field("VOICE", np.object_, "text"),
    "reference": _Field("REFERENCE_AUDIO", np.object_, "audio"),
    "prompt_audio": _Field("PROMPT_AUDIO", np.object_, "audio"),
    "prompt_text": _Field("PROMPT_TEXT", np.object_, "text"),
    "instruction": _Field("INSTRUCTION", np.object_, "text"),
    "language": _Field("LANGUAGE", np.object_, "text"),
    "seed": _Field("SEED", np.uint64, "number"),
    "cfg_value": _Field("CFG_VALUE", np.float32, "number"),
    "inference_steps": _Field("INFERENCE_STEPS", np.int32, "number"),
    "max_seconds": _Field("MAX_SECONDS", np.float32, "number"),
    "chunk_schedule": _Field("CHUNK_SCHEDULE", np.int32, "numbers"),
}


def requested_outputs(pcm16: bool) -> tuple[str, ...]:
    """Names of the outputs to ask for: the samples as INT16 or FP32, and what describes them."""
    return ("PCM16" if pcm16 else "AUDIO", "SAMPLE_RATE", "CHUNK_INDEX", "FINISH_REASON")


def build_tensors(text: str, **options: Unpack[SpeechOptions]) -> dict[str, npt.NDArray[Any]]:
    """The request's input tensors by name; text and audio are object arrays of one ``bytes``, shape (1,).

    Raises ``InvalidRequest`` for a value that does not fit the field's type. What the server allows within the
    type (lengths, ranges, which fields go together) is for the server to say.
    """
    values: dict[str, Any] = {"text": text, **options}
    if unknown := set(values) - set(_FIELDS):
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; known are {', '.join(list(_FIELDS)[1:])}")
    if text is None:
        raise InvalidRequest("TEXT", "is None; a string is needed")
    return {_FIELDS[key].name: _tensor(_FIELDS[key], value) for key, value in values.items() if value is not None}


def build_inputs(text: str, **options: Unpack[SpeechOptions]) -> list[InferInput]:
    """The same request as inputs for tritonclient's own gRPC clients, for those who call these directly."""
    from tritonclient.grpc import InferInput
    from tritonclient.utils import np_to_triton_dtype

    inputs = []
    for name, values in build_tensors(text, **options).items():
        infer_input = InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        inputs.append(infer_input.set_data_from_numpy(values))
    return inputs


def _tensor(field: _Field, value: Any) -> npt.NDArray[Any]:
    if field.kind == "text":
        if not isinstance(value, str):
            raise InvalidRequest(field.name, f"is of type {type(value).__name__}; a string is needed")
        try:
            return np.array([value.encode("utf-8")], dtype=np.object_)
        except UnicodeEncodeError as e:
            raise InvalidRequest(field.name, f"cannot be written as UTF-8: {e.reason} at {e.start}") from e
    if field.kind == "audio":
        return np.array([audio_file_bytes(value, field.name)], dtype=np.object_)
    if field.kind == "number":
        return np.array([_number(field, value)], dtype=field.dtype)
    if not isinstance(value, Sequence | np.ndarray):
        raise InvalidRequest(field.name, f"is of type {type(value).__name__}; a list of integers is needed")
    return np.array([_number(field, number) for number in value], dtype=field.dtype)


def _number(field: _Field, value: Any) -> int | float:
    """``value`` if the field's type can hold it; NumPy would wrap or cut some values without a word."""
    whole = issubclass(field.dtype, np.integer)
    allowed = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, allowed):
        wanted = "an integer" if whole else "a number"
        raise InvalidRequest(field.name, f"{value!r} is of type {type(value).__name__}; {wanted} is needed")
    if whole:
        limits = np.iinfo(field.dtype)  # type: ignore[type-var]
        if not limits.min <= value <= limits.max:
            raise InvalidRequest(field.name, f"{value} is not within {limits.min} to {limits.max}")
        return int(value)
    return float(value)
