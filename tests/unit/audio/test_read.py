"""Reference audio in every format and every state (case S29): read, mixed and resampled, or refused by name."""

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from triton_speech.audio.read import AudioLimits, Samples, read_audio
from triton_speech.errors import SpeechError

FIELD = "REFERENCE_AUDIO"
LIMITS = AudioLimits()


def tone(seconds: float = 2.0, rate: int = 16_000, hertz: float = 440.0, peak: float = 0.5) -> Samples:
    return (peak * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encode(samples: np.ndarray, rate: int = 16_000, container: str = "WAV", subtype: str | None = None) -> bytes:
    if not soundfile.check_format(container, subtype):
        pytest.skip(f"this libsndfile cannot write {container} {subtype or ''}")
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=container, subtype=subtype)
    return buffer.getvalue()


def read(data: bytes, limits: AudioLimits = LIMITS, rate: int = 16_000) -> Samples:
    return read_audio(data, FIELD, sample_rate=rate, limits=limits)


def refusal(data: bytes, limits: AudioLimits = LIMITS) -> str:
    with pytest.raises(SpeechError) as caught:
        read(data, limits)
    assert caught.value.code == "INVALID_ARG"
    field, _, problem = caught.value.text.partition(": ")
    assert field == FIELD
    assert "\n" not in problem
    assert not any(word in problem.lower() for word in ("bytesio", "libsndfile", "error", "/", "0x"))
    return problem


def pitch(samples: Samples, rate: int) -> float:
    """The loudest frequency in Hz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate / len(samples))


@pytest.mark.parametrize(
    ("container", "subtype"),
    [
        ("WAV", "PCM_U8"),
        ("WAV", "PCM_16"),
        ("WAV", "PCM_24"),
        ("WAV", "PCM_32"),
        ("WAV", "FLOAT"),
        ("WAV", "DOUBLE"),
        ("WAV", "ULAW"),
        ("WAVEX", "PCM_24"),
        ("W64", "PCM_24"),
        ("AIFF", "PCM_16"),
        ("CAF", "PCM_16"),
        ("AU", "PCM_16"),
        ("FLAC", "PCM_16"),
        ("FLAC", "PCM_24"),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
        ("MP3", "MPEG_LAYER_III"),
    ],
)
def test_every_format_is_read(container: str, subtype: str) -> None:
    samples = read(encode(tone(), container=container, subtype=subtype))
    assert samples.dtype == np.float32
    assert samples.shape == (32_000,)
    assert pitch(samples, 16_000) == pytest.approx(440, abs=2)
    # Encoders of lossy formats ring at the ends of the file.
    assert np.abs(samples[2_000:-2_000]).max() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_samples_at_the_wanted_rate_are_not_touched(subtype: str) -> None:
    written = np.round(tone() * 32768) / 32768
    np.testing.assert_array_equal(read(encode(written, subtype=subtype)), written)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 48_000, 96_000, 192_000])
def test_every_rate_is_resampled(rate: int) -> None:
    samples = read(encode(tone(rate=rate), rate))
    assert samples.dtype == np.float32
    assert samples.shape == (32_000,)
    middle = slice(4_000, -4_000)
    np.testing.assert_allclose(samples[middle], tone()[middle], atol=2e-3)


def test_a_length_that_does_not_divide_is_rounded_up() -> None:
    assert len(read(encode(tone()[:16_001], 44_100), replace(LIMITS, min_seconds=0))) == 5_806


def test_channels_are_averaged() -> None:
    left, right = tone(hertz=440), tone(hertz=880)
    samples = read(encode(np.stack((left, right), axis=1), subtype="FLOAT"))
    np.testing.assert_allclose(samples, (left + right) / 2, atol=1e-7)


def test_stereo_mp3_at_44100_hz() -> None:
    samples = read(encode(np.stack([tone(rate=44_100)] * 2, axis=1), 44_100, "MP3"))
    assert samples.shape == (32_000,)
    assert pitch(samples, 16_000) == pytest.approx(440, abs=2)


def test_mp3_has_no_glitches_inside() -> None:
    """soundfile seeks after each read, which an MP3 decoder does not survive unharmed."""
    samples = read(encode(tone(5.0), container="MP3"))
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    spectrum[2_100:2_300] = 0  # 440 Hz
    assert spectrum.max() < 1e-3 * len(samples)


def test_length_limits_are_inclusive() -> None:
    assert len(read(encode(tone(1.0)))) == 16_000
    assert len(read(encode(tone(30.0)))) == 480_000


def test_empty_bytes() -> None:
    assert refusal(b"") == "is empty; the bytes of an audio file are needed"


@pytest.mark.parametrize(
    "data",
    [b"hello", b"RIFF", bytes(1000), b"/etc/passwd", b"https://example.com/a.wav", b"\x1aE\xdf\xa3" + bytes(100)],
)
def test_not_an_audio_file(data: bytes) -> None:
    assert refusal(data) == (
        "is not an audio file that can be read; allowed are WAV, AIFF, CAF, AU, FLAC, Ogg (Vorbis or Opus) and MP3"
    )


def test_random_bytes_never_escape_as_another_error() -> None:
    source = np.random.default_rng(0)
    for start in (b"", b"RIFF", b"fLaC", b"OggS", b"ID3", b"\xff\xfb\x90"):
        for size in (1, 10, 100, 5_000):
            refusal(start + source.bytes(size))


def test_damaged_bytes_are_read_or_refused_and_nothing_else() -> None:
    source = np.random.default_rng(1)
    whole = [encode(tone(), container=c, subtype=s) for c, s in (("WAV", "PCM_16"), ("FLAC", None), ("OGG", "VORBIS"))]
    for data in whole * 30:
        broken = bytearray(data)
        for place in source.integers(0, min(len(data), 4_000), size=5):
            broken[place] = source.integers(256)
        with suppress(SpeechError):
            assert np.isfinite(read(bytes(broken))).all()


def test_a_format_that_is_not_allowed() -> None:
    assert refusal(encode(tone(), container="VOC", subtype="PCM_16")).startswith(
        "is a file of the format VOC; allowed are WAV"
    )


@pytest.mark.parametrize("container", ["WAV", "FLAC", "MP3"])
def test_a_file_that_is_cut_off(container: str) -> None:
    data = encode(tone(4.0), container=container)
    assert refusal(data[: len(data) * 2 // 3]) == "is damaged or cut off; send the whole audio file"


def test_a_vorbis_file_that_is_cut_off() -> None:
    data = encode(tone(4.0), container="OGG", subtype="VORBIS")
    refusal(data[: len(data) // 2])


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF024])
def test_a_wav_written_to_a_pipe_has_no_known_size_and_is_read(size: int) -> None:
    data = bytearray(encode(tone()))
    data[4:8] = size.to_bytes(4, "little")
    data[40:44] = (size - 36).to_bytes(4, "little")
    assert len(read(bytes(data))) == 32_000


def test_a_file_of_no_samples() -> None:
    assert refusal(encode(np.zeros(0, dtype=np.float32))) == "holds no audio"


def test_too_short() -> None:
    assert refusal(encode(tone(0.5))) == "lasts 0.50 s; at least 1 s are needed"


def test_too_long() -> None:
    assert refusal(encode(tone(31.0))) == "lasts 31.00 s; at most 30 s are allowed"


def test_hours_of_silence_in_a_small_file_are_refused_without_decoding_them() -> None:
    hour = encode(np.zeros(3600 * 8_000, dtype=np.int16), 8_000, "FLAC")
    assert len(hour) < 500_000
    assert refusal(hour) == "lasts 3600.00 s; at most 30 s are allowed"


def test_too_many_bytes() -> None:
    data = encode(tone())
    assert refusal(data, replace(LIMITS, max_bytes=1000)) == f"has {len(data)} bytes; at most 1000 are allowed"


@pytest.mark.parametrize("rate", [4_000, 384_000])
def test_a_rate_out_of_range(rate: int) -> None:
    assert refusal(encode(tone(rate=rate), rate)) == (f"has a sample rate of {rate} Hz; 8000 to 192000 Hz are allowed")


def test_a_header_that_lies_about_its_rate() -> None:
    data = bytearray(encode(tone()))
    data[24:28] = (2_000_000_000).to_bytes(4, "little")
    assert refusal(bytes(data)).startswith("has a sample rate of 2000000000 Hz")


def test_too_many_channels() -> None:
    assert refusal(encode(np.zeros((32_000, 9)))) == "has 9 channels; at most 8 are allowed"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_numbers(value: float) -> None:
    samples = tone()
    samples[20_000] = value
    assert refusal(encode(samples, subtype="FLOAT")) == "holds samples that are not numbers (NaN or infinity)"


def test_float_samples_of_integer_size() -> None:
    assert refusal(encode(tone(peak=32_000), subtype="FLOAT")) == (
        "holds samples up to 3.2e+04; float audio is expected within -1 to 1"
    )


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "FLOAT"])
def test_silence(subtype: str) -> None:
    assert refusal(encode(np.zeros(32_000, dtype=np.float32), subtype=subtype)).startswith("is silent")


def test_a_whisper_is_not_silence() -> None:
    read(encode(tone(peak=0.002)))


def test_channels_that_cancel_out_are_silent() -> None:
    assert "of the mono mix" in refusal(encode(np.stack((tone(), -tone()), axis=1)))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: AudioLimits(min_seconds=-1), "min_seconds is -1"),
        (lambda: AudioLimits(min_seconds=30), "max_seconds 30"),
        (lambda: AudioLimits(max_seconds=float("nan")), "max_seconds nan"),
        (lambda: AudioLimits(max_bytes=0), "max_bytes is 0"),
        (lambda: AudioLimits(min_rate=0), "min_rate is 0"),
        (lambda: AudioLimits(max_rate=4_000), "max_rate 4000"),
    ],
)
def test_limits_that_make_no_sense(wrong: Callable[[], AudioLimits], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        wrong()
