"""The codec on ONNX Runtime speaks through the real server as it does on torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from triton_speech.serve.errors import SpeechSetupError

# The first test that needs a graph waits for its export: a minute, on a busy machine several.
pytestmark = pytest.mark.timeout(900)

CODEC = "voxcpm2_codec"
LIMIT = 1e-4
Serving = Callable[..., AbstractContextManager[Any]]


def speech(text: str, seed: int, seconds: float, **others: Any) -> dict[str, Any]:
    limits = {"SEED": np.array([seed], np.uint64), "MAX_SECONDS": np.array([seconds], np.float32)}
    return {"TEXT": text, **limits, **others}


MIXED = [
    speech("Hi.", 1, 2.0),
    speech("The quick brown fox jumps over the lazy dog.", 2, 2.5),
    speech("Hi.", 3, 0.4),
    speech("Hello there.", 4, 2.0, CHUNK_SCHEDULE=np.array([3], np.int32)),
]


def runtime(exported: Any, name: str) -> dict[str, dict[str, object]]:
    return {CODEC: {"runtime": name, "onnx_graphs": exported.repository("codec")}}


@pytest.fixture(scope="module")
def onnx_caller(serving: Serving, calling: Any, exported: Any) -> Iterator[Any]:
    with (
        serving(runtime(exported, "onnxruntime"), exported.checkpoint) as server,
        calling(server.grpc_url) as caller,
    ):
        yield caller


@pytest.fixture(scope="module")
def torch_answers(serving: Serving, calling: Any, exported: Any) -> dict[str, list[Any]]:
    """What the same checkpoint says on torch, in floats and in PCM."""
    with serving(runtime(exported, "torch"), exported.checkpoint) as server, calling(server.grpc_url) as caller:
        return {name: [say(caller, inputs, name) for inputs in MIXED] for name in ("AUDIO", "PCM16")}


def say(caller: Any, inputs: dict[str, Any], name: str, pipeline: str = "voxcpm2") -> Any:
    answer = caller.ask(pipeline, inputs, (name, "SAMPLE_RATE", "CHUNK_INDEX", "FINISH_REASON"))
    assert (answer.errors, answer.finals) == ([], 1)
    return answer.samples(name)


def test_it_equals_torch_in_both_pipelines(
    onnx_caller: Any, torch_answers: dict[str, list[Any]], pipeline: str
) -> None:
    for inputs, expected in zip(MIXED, torch_answers["AUDIO"], strict=True):
        heard = say(onnx_caller, inputs, "AUDIO", pipeline)
        assert len(heard) == len(expected)
        assert np.abs(heard - expected).max() < LIMIT
        assert expected.std() > 1e-3, "silence would prove nothing"


def test_pcm_equals_torch_but_for_the_rounding_of_what_is_so_near(
    onnx_caller: Any, torch_answers: dict[str, list[Any]]
) -> None:
    """1e-4 is 3.3 steps of PCM16, and rounding adds one."""
    for inputs, expected in zip(MIXED, torch_answers["PCM16"], strict=True):
        heard = say(onnx_caller, inputs, "PCM16")
        assert np.abs(heard.astype(np.int32) - expected.astype(np.int32)).max() <= 4


def test_streams_at_once_equal_torch(onnx_caller: Any, torch_answers: dict[str, list[Any]]) -> None:
    answers = onnx_caller.ask_all("voxcpm2", MIXED * 2)
    for answer, expected in zip(answers, torch_answers["AUDIO"] * 2, strict=True):
        assert (answer.errors, answer.finals) == ([], 1)
        assert np.abs(answer.samples() - expected).max() < LIMIT


def test_a_caller_who_leaves_frees_the_place_of_its_stream(
    serving: Serving, calling: Any, exported: Any, torch_answers: dict[str, list[Any]]
) -> None:
    parameters = runtime(exported, "onnxruntime")
    parameters[CODEC]["max_streams"] = 1
    with serving(parameters, exported.checkpoint) as server, calling(server.grpc_url) as caller:
        for _ in range(3):
            call = caller.open("voxcpm2", speech("Hi there, how are you?", 9, 30.0))
            next(iter(call))
            call.cancel()
            # The only place is free again, or this stream is refused; what the one before left is not heard.
            heard = retried(caller, MIXED[0])
            assert np.abs(heard - torch_answers["AUDIO"][0]).max() < LIMIT


def retried(caller: Any, inputs: dict[str, Any]) -> Any:
    """The samples, asked again while the place is not free yet."""
    for _ in range(200):
        answer = caller.ask("voxcpm2", inputs)
        if not answer.errors:
            return answer.samples()
        assert "is full" in answer.errors[0]
    raise AssertionError("the place is never free")


def test_without_a_graph_the_server_says_how_to_make_one(serving: Serving, exported: Any, tmp_path: Any) -> None:
    with (
        pytest.raises(SpeechSetupError, match="triton-speech export codec --checkpoint tiny --onnx DIR"),
        serving({CODEC: {"runtime": "onnxruntime", "onnx_graphs": tmp_path}}, exported.checkpoint),
    ):
        pass
