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


class SamplingOptions(TypedDict, total=False):
    """How speech is drawn. Each family has some of these fields; a pipeline refuses those that it has not, by name."""

    cfg_value: float | None
    inference_steps: int | None
    temperature: float | None
    """0 takes the likeliest code each time."""
    top_k: int | None
    """0 takes all."""
    top_p: float | None
    repetition_penalty: float | None
    codes_temperature: float | None
    """Of the codes of a frame after its first, as the next two."""
    codes_top_k: int | None
    codes_top_p: float | None


class SpeechOptions(SamplingOptions, total=False):
    """The optional fields of a request. One that is absent or None is not sent: the server's default holds."""

    voice: str | Sequence[str] | None
    """Name of a voice stored on the server; of a dialogue, the names of its speakers' voices."""
    reference: AudioSource | list[AudioSource] | None
    """Recording whose timbre is to be taken; of a dialogue, a list with a recording of each speaker."""
    prompt_audio: AudioSource | None
    """Recording to be continued; needs ``prompt_text``."""
    prompt_text: str | None
    """What is said in ``prompt_audio``."""
    instruction: str | None
    """Description of the wanted voice or style."""
    language: str | None
    seed: int | None
    """0 to 2**64 - 1. One seed gives the same speech again."""
    max_seconds: float | None
    """Longest speech, in seconds of audio; the finish reason is then ``length``."""
    chunk_schedule: Sequence[int] | None
    """Frames in the first, second, ... chunk; the last number holds from there on."""
    priority: int | None
    """1 goes before 0, the default, where requests wait for a place on the server."""


class _Field(NamedTuple):
    name: str
    dtype: type[np.generic]
    kind: str  # "text", "audio", "number" or "numbers"
    is_list: bool = False
    """Whether there may be a list of them."""


_FIELDS: Mapping[str, _Field] = {
    "text": _Field("TEXT", np.object_, "text"),
    "voice": _Field("VOICE", np.object_, "text", is_list=True),
    "reference": _Field("REFERENCE_AUDIO", np.object_, "audio", is_list=True),
    "prompt_audio": _Field("PROMPT_AUDIO", np.object_, "audio"),
    "prompt_text": _Field("PROMPT_TEXT", np.object_, "text"),
    "instruction": _Field("INSTRUCTION", np.object_, "text"),
    "language": _Field("LANGUAGE", np.object_, "text"),
    "seed": _Field("SEED", np.uint64, "number"),
    "cfg_value": _Field("CFG_VALUE", np.float32, "number"),
    "inference_steps": _Field("INFERENCE_STEPS", np.int32, "number"),
    "temperature": _Field("TEMPERATURE", np.float32, "number"),
    "top_k": _Field("TOP_K", np.int32, "number"),
    "top_p": _Field("TOP_P", np.float32, "number"),
    "repetition_penalty": _Field("REPETITION_PENALTY", np.float32, "number"),
    "codes_temperature": _Field("CODES_TEMPERATURE", np.float32, "number"),
    "codes_top_k": _Field("CODES_TOP_K", np.int32, "number"),
    "codes_top_p": _Field("CODES_TOP_P", np.float32, "number"),
    "max_seconds": _Field("MAX_SECONDS", np.float32, "number"),
    "chunk_schedule": _Field("CHUNK_SCHEDULE", np.int32, "numbers"),
    "priority": _Field("PRIORITY", np.int32, "number"),
}


def requested_outputs(pcm16: bool) -> tuple[str, ...]:
    """Names of the outputs to ask for: the samples as INT16 or FP32, and what describes them."""
    return ("PCM16" if pcm16 else "AUDIO", "SAMPLE_RATE", "CHUNK_INDEX", "FINISH_REASON")


def build_tensors(text: str, **options: Unpack[SpeechOptions]) -> dict[str, npt.NDArray[Any]]:
    """The request's input tensors by name; text and audio are object arrays of ``bytes``, shape (1,) or a list's (n,).

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
    if field.kind in ("text", "audio"):
        # A tuple is one recording: samples with their rate.
        several = field.is_list and isinstance(value, list | tuple if field.kind == "text" else list)
        if several and not value:
            raise InvalidRequest(field.name, "is an empty list; leave it out instead")
        read = _text if field.kind == "text" else audio_file_bytes
        return np.array([read(one, field.name) for one in (value if several else [value])], dtype=np.object_)
    if field.kind == "number":
        return np.array([_number(field, value)], dtype=field.dtype)
    if not isinstance(value, Sequence | np.ndarray):
        raise InvalidRequest(field.name, f"is of type {type(value).__name__}; a list of integers is needed")
    return np.array([_number(field, number) for number in value], dtype=field.dtype)


def _text(value: Any, name: str) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(name, f"is of type {type(value).__name__}; a string is needed")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as e:
        raise InvalidRequest(name, f"cannot be written as UTF-8: {e.reason} at {e.start}") from e


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
