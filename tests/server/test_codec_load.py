"""Whole pipelines over a codec that batches: order, ends and samples are those of a stream alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

STREAMS = 24
TOLERANCE = 1e-5
"""Random weights are as loud as speech, and lift rounding errors above those of a trained voice."""


@pytest.fixture(scope="module")
def batching_caller(
    serving: Callable[..., AbstractContextManager[Any]], calling: Callable[[str], AbstractContextManager[Any]]
) -> Iterator[Any]:
    parameters = {
        # The same latents in any company, so that what is left is the codec's.
        "voxcpm2_talker": {"deterministic": "true", "max_num_seqs": STREAMS},
        "voxcpm2_codec": {"deterministic": "false", "min_batch": 6, "max_wait_ms": 4, "batches_in_flight": 2},
    }
    with serving(parameters) as server, calling(server.grpc_url) as caller:
        yield caller


def speech(seed: int) -> dict[str, Any]:
    schedule = [[1], [1, 2, 4], [3], [1, 8]][seed % 4]
    return {
        "TEXT": "The quick brown fox jumps over the lazy dog.",
        "SEED": np.array([seed], np.uint64),
        "MAX_SECONDS": np.array([0.5 + 0.1 * (seed % 7)], np.float32),
        "CHUNK_SCHEDULE": np.array(schedule, np.int32),
    }


def test_streams_that_share_batches_sound_as_each_does_alone(batching_caller: Any, pipeline: str) -> None:
    """T4, T5."""
    requests = [speech(seed) for seed in range(STREAMS)]
    solos = [batching_caller.ask(pipeline, inputs) for inputs in requests]
    for answer, solo in zip(batching_caller.ask_all(pipeline, requests), solos, strict=True):
        assert (answer.errors, answer.finals) == ([], 1)
        assert answer.column("CHUNK_INDEX") == list(range(len(answer.responses)))
        assert answer.column("FINISH_REASON") == solo.column("FINISH_REASON")
        assert np.abs(answer.samples() - solo.samples()).max() < TOLERANCE


def test_leaving_streams_leave_the_others_as_they_are(batching_caller: Any) -> None:
    """T4, T26: callers go in the middle, while their chunks are in a batch with those who stay."""
    stay = [speech(seed) for seed in range(8)]
    solos = [batching_caller.ask("voxcpm2", inputs) for inputs in stay]
    leaving = [
        batching_caller.open("voxcpm2", {**speech(50), "MAX_SECONDS": np.array([5.0], np.float32)}) for _ in range(8)
    ]
    for call in leaving:
        next(call)
    answers = []
    for half in (stay[:4], stay[4:]):
        for call in leaving[: len(leaving) // 2]:
            call.cancel()
        answers += batching_caller.ask_all("voxcpm2", half)
        leaving = leaving[len(leaving) // 2 :]
    for answer, solo in zip(answers, solos, strict=True):
        assert (answer.errors, answer.finals) == ([], 1)
        assert np.abs(answer.samples() - solo.samples()).max() < TOLERANCE
