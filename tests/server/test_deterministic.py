"""With ``deterministic`` a seed gives the same bytes in any company. A server of its own: 8 slots, like the default."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import soundfile


def voice() -> bytes:
    time = np.arange(24_000) / 16_000
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(2 * np.pi * 150 * time), 16_000, format="WAV")
    return file.getvalue()


def speech(text: str, seed: int, seconds: float, **others: Any) -> dict[str, Any]:
    limits = {"SEED": np.array([seed], np.uint64), "MAX_SECONDS": np.array([seconds], np.float32)}
    return {"TEXT": text, **limits, **others}


MIXED = [
    speech("Hi.", 1, 2.0),
    speech("The quick brown fox jumps over the lazy dog.", 2, 2.5),
    speech("Hi.", 3, 0.4),
    speech("Hi.", 1, 2.0, CHUNK_SCHEDULE=np.array([3], np.int32)),
    speech("word " * 45, 5, 1.5),
    speech("Hello there.", 6, 2.0, REFERENCE_AUDIO=voice()),
    speech("Hello there.", 7, 2.0, PROMPT_AUDIO=voice(), PROMPT_TEXT="One two."),
    speech("Hello there.", 8, 2.0, CFG_VALUE=np.array([3.5], np.float32)),
]
"""Short and long texts, early and late ends, prompts that take several prefill chunks."""


@pytest.fixture(scope="module")
def deterministic_caller(
    serving: Callable[..., AbstractContextManager[Any]], calling: Callable[[str], AbstractContextManager[Any]]
) -> Iterator[Any]:
    with serving({"voxcpm2_talker": {"deterministic": "true"}}) as server, calling(server.grpc_url) as caller:
        yield caller


def largest_difference(ours: Any, solo: Any) -> float:
    return float(np.abs(ours - solo).max()) if len(ours) == len(solo) else np.inf


def assert_equal_to_solo(answers: list[Any], solos: list[Any]) -> None:
    assert [answer.errors for answer in answers] == [[]] * len(solos)
    assert [largest_difference(a.samples(), s.samples()) for a, s in zip(answers, solos, strict=True)] == [0.0] * len(
        solos
    )
    assert [answer.column("CHUNK_INDEX") for answer in answers] == [solo.column("CHUNK_INDEX") for solo in solos]
    assert [answer.finals for answer in answers] == [1] * len(solos)


def test_eight_streams_at_once_are_what_each_is_alone(deterministic_caller: Any, pipeline: str) -> None:
    """S16, T4: the same bytes, whoever else speaks."""
    solos = [deterministic_caller.ask(pipeline, inputs) for inputs in MIXED]
    for _ in range(2):
        assert_equal_to_solo(deterministic_caller.ask_all(pipeline, MIXED), solos)


def test_streams_of_other_step_counts_change_nothing(deterministic_caller: Any, pipeline: str) -> None:
    """S16: streams that cannot share a batch share a server."""
    requests = [
        speech("Hello there.", seed, 1.5, INFERENCE_STEPS=np.array([steps], np.int32))
        for seed, steps in enumerate((10, 4, 4, 10, 2, 7))
    ]
    solos = [deterministic_caller.ask(pipeline, inputs) for inputs in requests]
    assert_equal_to_solo(deterministic_caller.ask_all(pipeline, requests), solos)


def test_more_streams_than_slots_are_all_served(deterministic_caller: Any, pipeline: str) -> None:
    """S25: 24 at once on 8 slots wait their turn and are what they are alone."""
    short = [speech("Hello there.", seed, 0.4 + 0.1 * (seed % 4)) for seed in range(24)]
    solos = [deterministic_caller.ask(pipeline, inputs) for inputs in short]
    assert_equal_to_solo(deterministic_caller.ask_all(pipeline, short), solos)


def test_requests_without_an_id_never_share_state(deterministic_caller: Any, pipeline: str) -> None:
    """T1, S10: no id, or one and the same id, for two callers at once."""
    one, other = speech("Hello there.", 1, 1.5), speech("Quite another text.", 2, 1.5)
    solos = [deterministic_caller.ask(pipeline, inputs) for inputs in (one, other)]
    for request_id in ("", "default"):
        with ThreadPoolExecutor(2) as threads:
            running = [
                threads.submit(deterministic_caller.ask, pipeline, inputs, request_id=request_id)
                for inputs in (one, other)
            ]
            assert_equal_to_solo([future.result() for future in running], solos)
