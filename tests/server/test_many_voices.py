"""Sixty-four voices at once, in both pipelines and chunks of every size: each sounds as it does alone, bit for bit."""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

RATE = 16_000
VOICES = 64
PIPELINES = ("voxcpm2", "voxcpm2_pipeline")
FRAME = 3_840
WORDS = ("morning", "the kettle", "is", "on a table", "seven", "trains", "leave", "in the rain")


def recording(number: int) -> bytes:
    """A second or a little more, of a pitch and a timbre that no other number has."""
    at = np.arange(int((1.0 + 0.01 * number) * RATE)) / RATE
    pitch, brightness = 80 + 7 * number, 0.5 + 0.02 * number
    samples = 0.1 * sum(np.sin(2 * np.pi * pitch * k * at) / k**brightness for k in range(1, 12))
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV")
    return file.getvalue()


def voice(number: int) -> dict[str, Any]:
    """Recordings to imitate, to continue, or both."""
    return (
        {"REFERENCE_AUDIO": recording(number)},
        {"PROMPT_AUDIO": recording(number), "PROMPT_TEXT": "One, two."},
        {"REFERENCE_AUDIO": recording(number), "PROMPT_AUDIO": recording(number + 1), "PROMPT_TEXT": "One two."},
    )[number % 3]


@pytest.fixture(scope="module")
def many_voices_server(
    serving: Callable[..., AbstractContextManager[Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Deterministic talker and codec; eight streams speak at once, the others wait, as on the default server."""
    parameters = {
        "voxcpm2": {"queue_seconds": 200},
        "voxcpm2_talker": {"deterministic": "true", "threads": 1},
        "voxcpm2_codec": {"deterministic": "true", "threads": 1},
    }
    voices: Path = tmp_path_factory.mktemp("voices")
    with serving(parameters, voices=voices) as server:
        yield server


@pytest.fixture(scope="module")
def many_voices_caller(many_voices_server: Any, calling: Callable[[str], AbstractContextManager[Any]]) -> Iterator[Any]:
    with calling(many_voices_server.grpc_url) as caller:
        yield caller


@pytest.fixture(scope="module")
def requests(many_voices_caller: Any) -> list[dict[str, Any]]:
    """One for each voice: half of the voices are stored, half come with the request."""
    source = random.Random(64)
    asked = []
    for number in range(VOICES):
        recordings = voice(number)
        if number % 2:
            name = f"voice-{number}"
            given = {"COMMAND": "add", "NAME": name, **recordings}
            added = many_voices_caller.ask("voices", given, ("RESULT",))
            assert json.loads(added.responses[0].as_numpy("RESULT").item())["problem"] == ""
            recordings = {"VOICE": name}
        frames = source.randint(3, 12)
        asked.append(
            {
                "TEXT": " ".join(source.choices(WORDS, k=source.randint(1, 8))) + ".",
                "SEED": np.array([number], np.uint64),
                "MAX_SECONDS": np.array([frames * 0.08], np.float32),
                **recordings,
            }
        )
    return asked


@pytest.fixture(scope="module")
def alone(many_voices_caller: Any, requests: list[dict[str, Any]]) -> list[bytes]:
    """The samples of each request on an idle server, from the pipelines in turn."""
    answers = [many_voices_caller.ask(PIPELINES[n % 2], inputs) for n, inputs in enumerate(requests)]
    assert [answer.errors for answer in answers] == [[]] * VOICES
    return [answer.samples().tobytes() for answer in answers]


def test_every_voice_sounds_like_no_other(alone: list[bytes]) -> None:
    assert len(set(alone)) == VOICES


def test_sixty_four_voices_at_once_are_what_each_is_alone(
    many_voices_caller: Any, requests: list[dict[str, Any]], alone: list[bytes]
) -> None:
    source = random.Random(1)
    schedules = [[source.randint(1, 6) for _ in range(source.randint(1, 5))] for _ in requests]
    pipelines = [source.choice(PIPELINES) for _ in requests]
    delays = [source.uniform(0, 1) for _ in requests]

    def speak(number: int) -> Any:
        time.sleep(delays[number])
        inputs = {**requests[number], "CHUNK_SCHEDULE": np.array(schedules[number], np.int32)}
        return many_voices_caller.ask(pipelines[number], inputs)

    with ThreadPoolExecutor(VOICES) as threads:
        answers = list(threads.map(speak, range(VOICES)))
    assert [answer.errors for answer in answers] == [[]] * VOICES
    assert [answer.finals for answer in answers] == [1] * VOICES
    different = [n for n, answer in enumerate(answers) if answer.samples().tobytes() != alone[n]]
    assert different == []
    for answer, schedule in zip(answers, schedules, strict=True):
        sizes = [len(response.as_numpy("AUDIO")) // FRAME for response in answer.responses]
        assert sizes[:-1] == [schedule[min(n, len(schedule) - 1)] for n in range(len(sizes) - 1)]
        assert answer.column("CHUNK_INDEX") == list(range(len(sizes)))


def test_nothing_went_wrong_unseen(many_voices_server: Any) -> None:
    log = many_voices_server.log_text()
    assert "Signal (" not in log
    assert "Traceback" not in log
