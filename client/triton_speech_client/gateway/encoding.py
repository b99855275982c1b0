"""From samples to the bytes of an audio file while they come: PyAV's encoders and containers, in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, cast

import av
import av.codec
import av.filter
import numpy as np
import numpy.typing as npt

OPENAI_PCM_RATE = 24000
"""OpenAI's raw PCM has no header to tell its rate; programs take it for this one."""
MIN_RATE, MAX_RATE = 8000, 48000
MIN_SPEED, MAX_SPEED = 0.25, 4.0
_SLOWEST_STEP = 0.5  # of the filter atempo


@dataclass(frozen=True)
class AudioFormat:
    """A container and a codec by FFmpeg's names, bits per second where the codec loses some."""

    container: str
    codec: str
    media_type: str
    bit_rate: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def rates(self) -> tuple[int, ...]:
        """Sample rates in Hz that the codec takes, empty for any."""
        return tuple(sorted(av.codec.Codec(self.codec, "w").audio_rates or ()))

    def output_rate(self, sample_rate: int) -> int:
        """The rate to encode at where the caller did not choose: the speech's, or the next one that the codec has."""
        if self.container == "s16le":
            return OPENAI_PCM_RATE
        above = [rate for rate in self.rates if rate >= sample_rate]
        return sample_rate if not self.rates else above[0] if above else self.rates[-1]


FORMATS: Mapping[str, AudioFormat] = {
    "mp3": AudioFormat("mp3", "libmp3lame", "audio/mpeg", 96_000, {"write_xing": "0", "id3v2_version": "0"}),
    # A page is what a player gets at once; a second long by default.
    "opus": AudioFormat("ogg", "libopus", "audio/ogg", 64_000, {"page_duration": "20000"}),
    "aac": AudioFormat("adts", "aac", "audio/aac", 96_000),
    "flac": AudioFormat("flac", "flac", "audio/flac"),
    "wav": AudioFormat("wav", "pcm_s16le", "audio/wav"),
    "pcm": AudioFormat("s16le", "pcm_s16le", "audio/pcm"),
}


class Encoder:
    """One utterance's file. What ``add`` and ``end`` return is the file, in pieces.

    Headers of a stream leave its length open (WAV and FLAC have a place for it). With ``whole``, ``add`` returns
    nothing and ``end`` the file, its length in the header.

    Args:
        audio_format: one of ``FORMATS``.
        sample_rate: of the samples that come, in Hz.
        output_rate: of the file; None takes the format's choice.
        speed: 0.25 to 4; other than 1 the speech is stretched in time and keeps its pitch.
        whole: see above.
    """

    def __init__(
        self,
        audio_format: AudioFormat,
        sample_rate: int,
        output_rate: int | None = None,
        speed: float = 1.0,
        whole: bool = False,
    ) -> None:
        self.sample_rate = sample_rate
        self.output_rate = output_rate or audio_format.output_rate(sample_rate)
        self.samples_out = 0
        self._whole = io.BytesIO() if whole else None
        self._sink = _Sink()
        self._tempo = _Tempo(sample_rate, speed) if speed != 1.0 else None
        options = {"flush_packets": "1", "fflags": "+bitexact", **audio_format.options}
        self._container = av.open(self._whole or self._sink, "w", format=audio_format.container, options=options)
        self._stream = cast(Any, self._container.add_stream(audio_format.codec, rate=self.output_rate))
        self._stream.layout = "mono"
        if audio_format.bit_rate is not None:
            # Low rates have low limits in some codecs; 2 bits a sample are plenty for speech.
            self._stream.bit_rate = min(audio_format.bit_rate, 2 * self.output_rate + 16_000)
        self._container.start_encoding()

    @property
    def seconds(self) -> float:
        """Of audio, so far."""
        return self.samples_out / self.sample_rate

    def add(self, samples: npt.NDArray[np.int16]) -> bytes:
        """Encodes int16 samples of shape (T,); the bytes may be fewer than they make, or none."""
        if len(samples):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None], format="s16", layout="mono")
            frame.sample_rate = self.sample_rate
            for stretched in self._tempo.push(frame) if self._tempo else (frame,):
                self._encode(stretched)
        return self._sink.take()

    def end(self) -> bytes:
        """The rest of the file."""
        for frame in self._tempo.push(None) if self._tempo else ():
            self._encode(frame)
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._whole.getvalue() if self._whole else self._sink.take()

    def _encode(self, frame: av.AudioFrame) -> None:
        self.samples_out += frame.samples
        frame.pts = None
        self._container.mux(self._stream.encode(frame))


class _Sink:
    """A file that cannot seek, so that containers are written as streams."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def take(self) -> bytes:
        """What was written since the last time."""
        taken = bytes(self._written)
        self._written.clear()
        return taken


class _Tempo:
    """FFmpeg's filter ``atempo``, which overlaps and adds pieces of the wave."""

    def __init__(self, sample_rate: int, speed: float) -> None:
        steps = [speed] if speed >= _SLOWEST_STEP else [speed**0.5] * 2
        graph = av.filter.Graph()
        self._source = graph.add_abuffer(
            sample_rate=sample_rate, format="s16", layout="mono", time_base=Fraction(1, sample_rate)
        )
        self._end = graph.add("abuffersink")
        graph.link_nodes(self._source, *(graph.add("atempo", f"{step:.6f}") for step in steps), self._end).configure()
        self._graph = graph  # which owns the nodes
        self._samples = 0

    def push(self, frame: av.AudioFrame | None) -> Iterator[av.AudioFrame]:
        """The frames that are ready after this one; None ends the stream."""
        if frame is not None:
            frame.pts = self._samples
            self._samples += frame.samples
        self._source.push(frame)
        while True:
            try:
                ready: Any = self._end.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return
            yield ready
