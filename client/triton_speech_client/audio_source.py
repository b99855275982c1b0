"""Recordings that go with a request: from what the caller has to the bytes of an audio file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile

from triton_speech_client.errors import InvalidRequest

AudioSource: TypeAlias = "str | Path | bytes | tuple[npt.NDArray[Any], int]"
"""A path, the bytes of an audio file, or samples of shape (T,) or (T, channels) with their rate in Hz."""

# Each holds every value of its dtype, so that wrapping loses nothing.
_WAV_SUBTYPES = {"int16": "PCM_16", "int32": "PCM_32", "float32": "FLOAT", "float64": "DOUBLE"}


def audio_file_bytes(source: AudioSource, field: str) -> bytes:
    """The bytes of an audio file; samples are wrapped to WAV in memory. ``field`` is named in errors.

    A file's bytes go out as they are: the server reads more formats than this machine might.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str | Path):
        try:
            return Path(source).read_bytes()
        except OSError as e:
            raise InvalidRequest(field, f"{str(source)!r} cannot be read: {e.strerror or e}") from e
    if isinstance(source, tuple) and len(source) == 2:
        return _wav_bytes(source[0], source[1], field)
    raise InvalidRequest(
        field, f"is of type {type(source).__name__}; a path, bytes or (samples, sample rate) is needed"
    )


def _wav_bytes(samples: npt.NDArray[Any], sample_rate: int, field: str) -> bytes:
    samples = np.asarray(samples)
    subtype = _WAV_SUBTYPES.get(samples.dtype.name)
    if subtype is None:
        allowed = ", ".join(_WAV_SUBTYPES)
        raise InvalidRequest(field, f"has samples of type {samples.dtype.name}; allowed are {allowed}")
    if samples.ndim not in (1, 2):
        raise InvalidRequest(field, f"has samples of shape {samples.shape}; (T,) or (T, channels) is needed")
    is_whole = isinstance(sample_rate, int | np.integer) and not isinstance(sample_rate, bool)
    if not is_whole or sample_rate <= 0:
        raise InvalidRequest(field, f"has the sample rate {sample_rate!r}; a whole number of Hz is needed")
    file = io.BytesIO()
    try:
        soundfile.write(file, samples, int(sample_rate), format="WAV", subtype=subtype)
    except soundfile.LibsndfileError as e:
        raise InvalidRequest(field, f"of shape {samples.shape} does not fit a WAV file: {e.error_string}") from e
    return file.getvalue()
