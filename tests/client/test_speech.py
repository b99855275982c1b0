"""A whole utterance: what it says of itself and how it is saved."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from triton_speech_client import AudioChunk, InvalidRequest, ServerError, Speech
from triton_speech_client.speech import SpeechBuilder


def speech(samples: NDArray[Any]) -> Speech:
    return Speech(samples, 48000, "stop", seconds_to_first_audio=0.02, wall_seconds=0.5)


SAMPLES = np.random.default_rng(0).uniform(-1, 1, 48000).astype(np.float32)


def test_duration_and_real_time_factor() -> None:
    assert speech(SAMPLES).duration == 1.0
    assert speech(SAMPLES).real_time_factor == 0.5


def test_no_audio_has_no_finite_real_time_factor() -> None:
    assert speech(SAMPLES[:0]).real_time_factor == math.inf


@pytest.mark.parametrize(("suffix", "name"), [(".wav", "WAV"), (".FLAC", "FLAC"), (".ogg", "OGG"), (".mp3", "MP3")])
def test_the_suffix_decides_the_format(tmp_path: Path, suffix: str, name: str) -> None:
    path = speech(SAMPLES).save(tmp_path / f"speech{suffix}")
    info = soundfile.info(path)
    assert (info.format, info.samplerate, info.channels) == (name, 48000, 1)


def test_wav_holds_exactly_what_the_server_would_send_as_pcm16(tmp_path: Path) -> None:
    pcm16 = np.clip(np.floor(SAMPLES * 32768), -32768, 32767).astype(np.int16)
    from_float, _ = soundfile.read(speech(SAMPLES).save(tmp_path / "f.wav"), dtype="int16")
    from_pcm16, _ = soundfile.read(speech(pcm16).save(str(tmp_path / "i.wav")), dtype="int16")
    assert np.array_equal(from_pcm16, pcm16)
    assert np.array_equal(from_float, pcm16)


def test_an_unknown_suffix_is_refused_before_a_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"'\.xyz'; known are \.wav, \.flac, \.ogg, \.mp3"):
        speech(SAMPLES).save(tmp_path / "speech.xyz")
    assert not list(tmp_path.iterdir())


def test_chunks_become_one_speech_and_the_last_reason_holds() -> None:
    builder = SpeechBuilder()
    parts = [SAMPLES[:10], SAMPLES[10:30], SAMPLES[30:30]]
    for index, samples in enumerate(parts):
        builder.add(AudioChunk(samples, 48000, index, "length" if index == 2 else ""))
    whole = builder.speech()
    assert np.array_equal(whole.samples, SAMPLES[:30])
    assert whole.finish_reason == "length"
    assert 0 <= whole.seconds_to_first_audio <= whole.wall_seconds


def test_the_stop_of_the_server_was_counted_as_time_of_the_demos_speech() -> None:
    builder = SpeechBuilder()
    builder.add(AudioChunk(SAMPLES, 48000, 0, "stop"))
    made = builder.speech().wall_seconds
    time.sleep(0.01)
    assert builder.speech().wall_seconds == made


def test_no_chunk_is_no_speech() -> None:
    with pytest.raises(ServerError, match="no speech"):
        SpeechBuilder().speech()
