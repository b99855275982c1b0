"""The reference stage encodes a recording once, tells so in its metrics, and keeps nobody waiting for another's."""

from __future__ import annotations

import io
import re
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import soundfile

from triton_speech_client import ServerUnavailable
from triton_speech_client.errors import error_from_text

RATE = 16_000
LATENTS = ("REFERENCE_LATENTS",)
TEXT = {"TEXT": "Hi.", "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.2], np.float32)}

_fresh = np.random.default_rng()


def recording(seconds: float = 1.5, kind: str = "WAV", rate: int = RATE) -> tuple[Any, bytes]:
    """Samples that no test before has sent, and a lossless file of them."""
    samples = np.round(_fresh.uniform(-0.5, 0.5, int(seconds * rate)) * 32768).astype(np.int16)
    return samples, audio_file(samples, kind, rate)


def audio_file(samples: Any, kind: str, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype="PCM_16")
    return file.getvalue()


class Counters:
    """What the cache has counted between the beginning and now."""

    def __init__(self, server: Any) -> None:
        self._url = server.metrics_url
        self._before = self._read()

    def __call__(self, *events: str) -> int | tuple[int, ...]:
        now = self._read()
        grown = tuple(now[event] - self._before[event] for event in events)
        return grown[0] if len(grown) == 1 else grown

    def _read(self) -> dict[str, int]:
        # What is counted is told a few times a second.
        time.sleep(0.5)
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(r'^triton_speech_reference_cache_total\{.*event="(\w+)".*\} (\d+)', text, re.MULTILINE)
        return {event: int(number) for event, number in found}


@pytest.fixture
def counted(speech_server: Any) -> Counters:
    return Counters(speech_server)


def test_the_second_use_of_a_recording_costs_no_encode(caller: Any, pipeline: str, counted: Counters) -> None:
    _, data = recording()
    first, again = (caller.ask(pipeline, {**TEXT, "REFERENCE_AUDIO": data}) for _ in range(2))
    assert not first.errors
    assert np.array_equal(first.samples(), again.samples())
    assert counted("misses", "hits", "waits") == (1, 1, 0)


def test_a_stored_voice_costs_no_encode(caller: Any, pipeline: str, counted: Counters, speech_server: Any) -> None:
    _, data = recording()
    caller.ask("voices", {"COMMAND": "add", "NAME": "ann", "REFERENCE_AUDIO": data}, ("RESULT",))
    assert counted("misses") == 1
    for _ in range(3):
        assert not caller.ask(pipeline, {**TEXT, "VOICE": "ann"}).errors
    assert counted("misses", "hits", "waits") == (1, 0, 0)
    (speech_server.voices / "ann.safetensors").unlink()


def test_what_counts_is_what_is_heard(caller: Any, counted: Counters) -> None:
    """S3: the same samples in another file are known; other samples, or the same in another role, are not."""
    samples, wav = recording()
    for data in (wav, audio_file(samples, "FLAC"), audio_file(np.stack((samples, samples), axis=1), "WAV")):
        assert not caller.ask("voxcpm2_reference", {"REFERENCE_AUDIO": data}, LATENTS).errors
    assert counted("misses", "hits") == (1, 2)
    louder = audio_file(samples + np.int16(1), "WAV")
    assert not caller.ask("voxcpm2_reference", {"REFERENCE_AUDIO": louder}, LATENTS).errors
    assert not caller.ask("voxcpm2_reference", {"PROMPT_AUDIO": wav}, ("PROMPT_LATENTS",)).errors
    assert counted("misses", "hits") == (3, 2)


def test_those_who_ask_at_once_share_one_encode(caller: Any, counted: Counters) -> None:
    _, data = recording(29)
    answers = caller.ask_all("voxcpm2", [{**TEXT, "REFERENCE_AUDIO": data}] * 8)
    assert not any(answer.errors for answer in answers)
    misses, hits, waits = counted("misses", "hits", "waits")
    assert (misses, hits + waits) == (1, 7)
    assert waits > 0


def test_who_leaves_takes_no_encode_from_the_others(caller: Any, counted: Counters) -> None:
    _, data = recording(29)
    inputs = {**TEXT, "REFERENCE_AUDIO": data}
    with ThreadPoolExecutor(2) as threads:
        leaving = [caller.open("voxcpm2", inputs) for _ in range(3)]
        staying = [threads.submit(caller.ask, "voxcpm2", inputs) for _ in range(2)]
        for call in leaving:
            call.cancel()
        assert all(not answer.result().errors for answer in staying)
    assert counted("misses") == 1


def test_a_recording_that_is_refused_is_not_counted(caller: Any, counted: Counters) -> None:
    for data in (b"hello", recording(0.5)[1], recording(31)[1]):
        assert caller.ask("voxcpm2_reference", {"REFERENCE_AUDIO": data}, LATENTS).errors
    assert counted("misses", "hits", "waits") == (0, 0, 0)


def test_what_is_known_does_not_wait_for_what_is_encoded(caller: Any, counted: Counters) -> None:
    _, known = recording()
    caller.ask("voxcpm2_reference", {"REFERENCE_AUDIO": known}, LATENTS)
    with ThreadPoolExecutor(12) as threads:
        long = [
            threads.submit(caller.ask, "voxcpm2_reference", {"REFERENCE_AUDIO": recording(29)[1]}, LATENTS)
            for _ in range(12)
        ]
        while counted("misses") == 1:
            pass
        for _ in range(3):
            assert not caller.ask("voxcpm2_reference", {"REFERENCE_AUDIO": known}, LATENTS).errors
        assert not all(answer.done() for answer in long)
        assert not any(answer.result().errors for answer in long)
    assert counted("hits", "misses") == (3, 13)


def test_answers_to_many_go_each_to_its_own(caller: Any, counted: Counters) -> None:
    """Answers that come later than their turn, counted meanwhile: 2.51 crashed when two threads counted at once."""
    recordings = [recording(1 + n / 10)[1] for n in range(8)]
    alone = [
        caller.ask("voxcpm2_reference", {"REFERENCE_AUDIO": data}, LATENTS).samples(LATENTS[0]) for data in recordings
    ]
    bad = {"REFERENCE_AUDIO": b"hello"}
    every = [{"REFERENCE_AUDIO": recordings[n % 8]} if n % 5 else bad for n in range(400)]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda inputs: caller.ask("voxcpm2_reference", inputs, LATENTS), every))
    for n, answer in enumerate(answers):
        assert answer.finals == 1
        if n % 5:
            assert np.array_equal(answer.samples(LATENTS[0]), alone[n % 8])
        else:
            assert answer.errors[0].startswith("REFERENCE_AUDIO: is not an audio file")
    assert counted("misses", "hits") == (8, 320)


def test_more_recordings_than_places_are_refused(
    serving: Callable[..., AbstractContextManager[Any]], calling: Callable[[str], AbstractContextManager[Any]]
) -> None:
    with serving({"voxcpm2_reference": {"max_requests": 2, "max_encodes": 1}}) as server:
        with calling(server.grpc_url) as caller:
            data = [recording(29)[1] for _ in range(12)]
            answers = caller.ask_all("voxcpm2", [{**TEXT, "REFERENCE_AUDIO": one} for one in data])
            refused = [answer.errors[0] for answer in answers if answer.errors]
            assert 0 < len(refused) < 12
            for text in refused:
                assert text == "the reference encoder is full (2); try again in 1 s"
                assert isinstance(error_from_text(text), ServerUnavailable)
            # Without a recording there is nothing to wait for.
            assert not caller.ask("voxcpm2_pipeline", TEXT).errors
        assert "Signal (" not in server.log_text()
