"""Reference and prompt audio: every usual file is heard rightly, and each mode speaks in its own way."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import soundfile

TEXT = {"TEXT": "Hello there.", "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.5], np.float32)}
RATE = 16_000


def voice(seconds: float = 1.5, rate: int = RATE, pitch: float = 110.0) -> Any:
    """A buzz with the harmonics of a voice below 4 kHz, so that every rate from 8 kHz on can hold it."""
    time = np.arange(int(seconds * rate)) / rate
    return 0.1 * sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 20))


def audio_file(samples: Any, rate: int = RATE, kind: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


FORMATS = {
    "pcm16": audio_file(voice()),
    "stereo": audio_file(np.stack((voice(), voice()), axis=1)),
    "8_khz": audio_file(voice(rate=8_000), 8_000),
    "48_khz": audio_file(voice(rate=48_000), 48_000),
    "24_bit": audio_file(voice(), subtype="PCM_24"),
    "float": audio_file(voice(), subtype="FLOAT"),
    "8_bit": audio_file(voice(), subtype="PCM_U8"),
    "flac": audio_file(voice(), kind="FLAC"),
    "vorbis": audio_file(voice(), kind="OGG", subtype="VORBIS"),
    "opus": audio_file(voice(), kind="OGG", subtype="OPUS"),
    "mp3": audio_file(voice(), kind="MP3"),
    "thirty_seconds": audio_file(voice(29.99)),
}


def latents(caller: Any, data: bytes) -> Any:
    answer = caller.ask("voxcpm2_reference", {"REFERENCE_AUDIO": data}, ("REFERENCE_LATENTS",))
    assert not answer.errors
    return answer.samples("REFERENCE_LATENTS")


@pytest.mark.parametrize("name", FORMATS)
def test_reference_audio_of_every_usual_format_is_spoken_from(caller: Any, pipeline: str, name: str) -> None:
    """S29."""
    answer = caller.ask(pipeline, {**TEXT, "REFERENCE_AUDIO": FORMATS[name]})
    assert not answer.errors
    assert len(answer.samples()) > 0


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"thirty_seconds"}))
def test_one_voice_is_heard_alike_in_every_format(caller: Any, name: str) -> None:
    """S29: mixed to mono and resampled, a file says what the plain one says, but for what its coding lost."""
    plain, other = latents(caller, FORMATS["pcm16"]), latents(caller, FORMATS[name])
    assert abs(len(other) - len(plain)) <= 1
    count = min(len(plain), len(other)) - 1
    error = np.abs(other[1:count] - plain[1:count]).mean() / np.abs(plain[1:count]).mean()
    assert error < 0.25


def test_each_mode_speaks_in_its_own_way(caller: Any, pipeline: str) -> None:
    """Zero-shot, reference, continuation and both differ; each repeats itself bit for bit."""
    reference = {"REFERENCE_AUDIO": FORMATS["pcm16"]}
    prompt = {"PROMPT_AUDIO": audio_file(voice(pitch=200)), "PROMPT_TEXT": "One two."}
    spoken = set()
    for extra in ({}, reference, prompt, {**reference, **prompt}):
        first, again = (caller.ask(pipeline, {**TEXT, **extra}) for _ in range(2))
        assert not first.errors
        # The prompt is continued, not repeated: its own audio is not in the stream.
        assert len(first.samples()) == 6 * 3_840
        assert np.array_equal(first.samples(), again.samples())
        spoken.add(first.samples().tobytes())
    assert len(spoken) == 4


def test_another_voice_is_not_served_from_the_cache(caller: Any, pipeline: str) -> None:
    voices = [audio_file(voice(pitch=pitch)) for pitch in (90, 180)]
    one, other, again = (
        caller.ask(pipeline, {**TEXT, "REFERENCE_AUDIO": data}).samples() for data in (*voices, voices[0])
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_a_recording_is_padded_on_the_side_of_its_role(caller: Any) -> None:
    data = audio_file(voice(1.01))
    outputs = ("REFERENCE_LATENTS", "PROMPT_LATENTS")
    answer = caller.ask("voxcpm2_reference", {"REFERENCE_AUDIO": data, "PROMPT_AUDIO": data}, outputs)
    reference, prompt = (answer.samples(name) for name in outputs)
    assert reference.shape == prompt.shape
    assert not np.array_equal(reference, prompt)
