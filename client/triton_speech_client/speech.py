"""What comes back: chunks while the speech is being made, and the whole of it afterwards."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import soundfile

from triton_speech_client.errors import InvalidRequest, ServerError


class FileFormat(NamedTuple):
    """libsndfile's names for a container and for the coding of its samples."""

    format: str
    subtype: str


FILE_FORMATS = {
    ".wav": FileFormat("WAV", "PCM_16"),
    ".flac": FileFormat("FLAC", "PCM_16"),
    ".ogg": FileFormat("OGG", "VORBIS"),
    ".mp3": FileFormat("MP3", "MPEG_LAYER_III"),
}


def file_format(path: Path) -> FileFormat:
    """The format that ``path``'s suffix asks for."""
    try:
        return FILE_FORMATS[path.suffix.lower()]
    except KeyError:
        known = ", ".join(FILE_FORMATS)
        raise InvalidRequest("path", f"{str(path)!r} ends in {path.suffix!r}; known are {known}") from None


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """A piece of speech as it arrived.

    ``samples`` has shape (T,), float32 in [-1, 1] or int16; it is empty where the end brought no more audio.
    ``index`` counts from 0 without gaps. ``finish_reason`` is empty until the last chunk: ``stop``, ``length``.
    """

    samples: npt.NDArray[Any]
    sample_rate: int
    index: int
    finish_reason: str

    @property
    def duration(self) -> float:
        """Seconds of audio."""
        return len(self.samples) / self.sample_rate


@dataclass(frozen=True, eq=False)
class Speech:
    """A whole utterance. ``samples`` has shape (T,), float32 in [-1, 1] or int16; times are in seconds.

    ``seconds_to_first_audio`` and ``wall_seconds`` are measured here, from sending the request.
    """

    samples: npt.NDArray[Any]
    sample_rate: int
    finish_reason: str
    seconds_to_first_audio: float
    wall_seconds: float

    @property
    def duration(self) -> float:
        """Seconds of audio."""
        return len(self.samples) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of making per second of audio, first chunk included; infinite where there is no audio."""
        return self.wall_seconds / self.duration if len(self.samples) else math.inf

    def save(self, path: str | Path) -> Path:
        """Writes an audio file (wav and flac with 16 bits, ogg, mp3: by the suffix) and returns its path.

        Raises ``InvalidRequest`` for another suffix and ``OSError`` where the file cannot be written.
        """
        path = Path(path)
        container, subtype = file_format(path)
        with path.open("wb") as file:
            soundfile.write(file, self.samples, self.sample_rate, format=container, subtype=subtype)
        return path


@dataclass
class SpeechBuilder:
    """Puts a stream's chunks together and keeps the times. Made at the moment that the request is sent."""

    started: float = field(default_factory=time.perf_counter)
    parts: list[npt.NDArray[Any]] = field(default_factory=list)
    sample_rate: int = 0
    samples_made: int = 0
    finish_reason: str = ""
    seconds_to_first_audio: float = math.nan
    wall_seconds: float = math.nan
    """Until the last chunk so far: what its owner does after the stream is no time of the speech."""

    def add(self, chunk: AudioChunk) -> None:
        """Takes the next chunk."""
        self.wall_seconds = time.perf_counter() - self.started
        if len(chunk.samples) and not self.samples_made:
            self.seconds_to_first_audio = self.wall_seconds
        self.parts.append(chunk.samples)
        self.samples_made += len(chunk.samples)
        self.sample_rate = chunk.sample_rate
        self.finish_reason = chunk.finish_reason

    def speech(self) -> Speech:
        """The utterance; call it when the stream has ended."""
        if not self.parts:
            raise ServerError("no speech was generated")
        return Speech(
            samples=np.concatenate(self.parts),
            sample_rate=self.sample_rate,
            finish_reason=self.finish_reason,
            seconds_to_first_audio=self.seconds_to_first_audio,
            wall_seconds=self.wall_seconds,
        )
