"""The bytes of a caller's audio file to mono samples, or one clear sentence why not."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from triton_speech.errors import SpeechError, invalid

FORMATS = frozenset({"WAV", "WAVEX", "RF64", "W64", "AIFF", "CAF", "AU", "FLAC", "OGG", "MP3"})
FORMATS_TEXT = "WAV, AIFF, CAF, AU, FLAC, Ogg (Vorbis or Opus) and MP3"
"""What else libsndfile knows is of samplers and laboratories, and of little use but for attacks."""
MAX_CHANNELS = 8
SILENCE_PEAK = 1e-3
"""-60 dBFS. A recording whose loudest sample is below this holds no voice."""
MAX_PEAK = 16.0
"""Float files may overshoot 1; far above it they hold integers or garbage."""
MP3_LENGTH_TAGS = (b"Xing", b"Info", b"VBRI")
STREAMED_SIZE = 0x7FFF0000
"""Writers that cannot seek put a size from here on into a WAV header."""

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class AudioLimits:
    """What a caller's audio file may be: seconds of audio, bytes of the file, its sample rate in Hz."""

    min_seconds: float = 1.0
    max_seconds: float = 30.0
    max_bytes: int = 64 * 2**20
    min_rate: int = 8_000
    max_rate: int = 192_000

    def __post_init__(self) -> None:
        if not 0 <= self.min_seconds < self.max_seconds < math.inf:
            raise ValueError(
                f"min_seconds is {self.min_seconds} and max_seconds {self.max_seconds}; 0 <= min < max is needed"
            )
        if not 0 < self.min_rate <= self.max_rate:
            raise ValueError(f"min_rate is {self.min_rate} and max_rate {self.max_rate}; 0 < min <= max is needed")
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes is {self.max_bytes}; at least 1 is needed")


def read_audio(data: bytes, field: str, *, sample_rate: int, limits: AudioLimits) -> Samples:
    """Decodes an audio file, mixes it to mono and resamples it.

    Memory is bounded by ``limits``, whatever the file's header announces: no more than a second past the limit
    is decoded.

    Args:
        data: the file's content, of one of ``FORMATS``: WAV with 8 to 32 bits or float, FLAC, Ogg Opus, MP3, ...
        field: the request's field, named in errors.
        sample_rate: of the result, in Hz.

    Returns:
        float32 samples (N,), finite, nominally in [-1, 1].

    Raises:
        SpeechError: INVALID_ARG, for a file that cannot be used.
    """
    if not data:
        raise invalid(field, "is empty; the bytes of an audio file are needed")
    if len(data) > limits.max_bytes:
        raise invalid(field, f"has {len(data)} bytes; at most {limits.max_bytes} are allowed")
    samples, rate = _decode(data, field, limits)
    _check_samples(samples, field)
    if rate == sample_rate:
        return samples
    resampled = soxr.resample(samples, rate, sample_rate, quality="HQ")
    # The last sample may fall behind the input's end: as librosa does, which the models were trained with.
    length = math.ceil(len(samples) * sample_rate / rate)
    padded = np.zeros(length, dtype=np.float32)
    padded[: len(resampled)] = resampled[:length]
    return padded


def _decode(data: bytes, field: str, limits: AudioLimits) -> tuple[Samples, int]:
    try:
        file = soundfile.SoundFile(io.BytesIO(data))
    except (soundfile.SoundFileError, RuntimeError, TypeError, ValueError) as error:
        raise invalid(field, f"is not an audio file that can be read; allowed are {FORMATS_TEXT}") from error
    with file:
        rate = file.samplerate
        if file.format not in FORMATS:
            raise invalid(field, f"is a file of the format {file.format}; allowed are {FORMATS_TEXT}")
        if not limits.min_rate <= rate <= limits.max_rate:
            raise invalid(
                field, f"has a sample rate of {rate} Hz; {limits.min_rate} to {limits.max_rate} Hz are allowed"
            )
        if file.channels > MAX_CHANNELS:
            raise invalid(field, f"has {file.channels} channels; at most {MAX_CHANNELS} are allowed")
        announced = file.frames
        try:
            # In one go: soundfile seeks after each read, and after a seek MP3 decodes garbage for a while.
            channels = file.read(math.ceil((limits.max_seconds + 1) * rate), dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise _damaged(field) from error
    samples: Samples = channels.mean(axis=1)
    _check_length(len(samples), announced, data, field, limits, rate, file.format)
    return samples, rate


def _check_length(
    count: int, announced: int, data: bytes, field: str, limits: AudioLimits, rate: int, container: str
) -> None:
    if count == 0:
        raise invalid(field, "holds no audio")
    seconds = count / rate
    if seconds > limits.max_seconds:
        raise invalid(
            field, f"lasts {_length(max(announced, count) / rate)}; at most {limits.max_seconds:g} s are allowed"
        )
    # Without such a tag the length of an MP3 file is an estimate.
    counted = container != "MP3" or any(tag in data[:65536] for tag in MP3_LENGTH_TAGS)
    if (counted and count < announced) or _wav_is_cut(data):
        raise _damaged(field)
    if seconds < limits.min_seconds:
        raise invalid(field, f"lasts {seconds:.2f} s; at least {limits.min_seconds:g} s are needed")


def _length(seconds: float) -> str:
    # Streams of unknown length announce centuries.
    return f"{seconds:.2f} s" if seconds < 86_400 else "longer than a day"


def _damaged(field: str) -> SpeechError:
    return invalid(field, "is damaged or cut off; send the whole audio file")


def _wav_is_cut(data: bytes) -> bool:
    size = int.from_bytes(data[4:8], "little")
    return data[:4] == b"RIFF" and len(data) < size < STREAMED_SIZE


def _check_samples(samples: Samples, field: str) -> None:
    if not np.isfinite(samples).all():
        raise invalid(field, "holds samples that are not numbers (NaN or infinity)")
    peak = float(np.abs(samples).max())
    if peak < SILENCE_PEAK:
        raise invalid(field, "is silent: no sample of the mono mix reaches -60 dBFS")
    if peak > MAX_PEAK:
        raise invalid(field, f"holds samples up to {peak:.4g}; float audio is expected within -1 to 1")
