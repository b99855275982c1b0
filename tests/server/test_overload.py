"""Who goes first where places are short, and what is late: a server of its own with one slot."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import grpc
import numpy as np
import pytest
from tests.server.gauges import SETTLE_SECONDS, gauge, wait_for_queue
from tritonclient.grpc import service_pb2_grpc

from triton_speech_client import DeadlineExceeded, HttpSpeechClient
from triton_speech_client.wire import infer_request

LATE = "the deadline of 1 s has passed; the stream was ended"


@pytest.fixture(scope="module")
def narrow_server(serving: Callable[..., AbstractContextManager[Any]]) -> Iterator[Any]:
    with serving({"voxcpm2_talker": {"max_num_seqs": 1}}) as server:
        yield server


@pytest.fixture(scope="module")
def narrow_caller(narrow_server: Any, calling: Callable[[str], AbstractContextManager[Any]]) -> Iterator[Any]:
    with calling(narrow_server.grpc_url) as caller:
        yield caller


def short(priority: int = 0) -> dict[str, Any]:
    limits = {"SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.4], np.float32)}
    return {"TEXT": "Hi.", "PRIORITY": np.array([priority], np.int32), **limits}


def slow(seconds: float) -> dict[str, Any]:
    """Much slower than others: as many seconds of audio as this, each frame a chunk."""
    return {
        "TEXT": "word " * 45,
        "INFERENCE_STEPS": np.array([100], np.int32),
        "CHUNK_SCHEDULE": np.array([1], np.int32),
        "MAX_SECONDS": np.array([seconds], np.float32),
    }


def begin(caller: Any, pipeline: str, seconds: float) -> Any:
    """A slow stream that holds the slot."""
    call = caller.open(pipeline, slow(seconds))
    assert not next(call).error_message
    return call


def with_deadline(server: Any, pipeline: str, seconds: float, text: str = "word " * 45, steps: int = 100) -> list[Any]:
    """All messages of a stream that has so long on the server, and for ever here."""
    request = infer_request(pipeline, text, "", False, seconds, inference_steps=steps)
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return list(stub.ModelStreamInfer(iter((request,)), timeout=60))


def errors_and_finals(messages: list[Any]) -> tuple[list[str], int]:
    errors = [message.error_message for message in messages if message.error_message]
    return errors, sum(message.infer_response.parameters["triton_final_response"].bool_param for message in messages)


def test_high_priority_takes_the_next_slot(narrow_server: Any, narrow_caller: Any, pipeline: str) -> None:
    holder = begin(narrow_caller, pipeline, 20.0)
    ended: list[str] = []

    def ask(name: str, priority: int) -> None:
        assert not narrow_caller.ask(pipeline, short(priority)).errors
        ended.append(name)

    with ThreadPoolExecutor(3) as threads:
        asked = []
        for name, priority in (("first", 0), ("second", 0), ("high", 1)):
            asked.append(threads.submit(ask, name, priority))
            wait_for_queue(narrow_server, len(asked))
        assert not ended
        holder.cancel()
        for one in asked:
            one.result()
    assert ended == ["high", "first", "second"]


@pytest.mark.parametrize("priority", [2, -1, 2**31 - 1])
def test_another_priority_is_refused(narrow_caller: Any, pipeline: str, priority: int) -> None:
    answer = narrow_caller.ask(pipeline, short(priority))
    assert f"PRIORITY: {priority} is out of range, allowed is 0 to 1" in answer.errors[0]
    assert (answer.responses, answer.finals) == ([], 1)


def test_a_stream_that_is_late_is_ended_and_its_slot_is_free(
    narrow_server: Any, narrow_caller: Any, pipeline: str
) -> None:
    messages = with_deadline(narrow_server, pipeline, 1.0)
    (text,), finals = errors_and_finals(messages)
    assert text.endswith(LATE)
    assert (len(messages) > 1, finals) == (True, 1)
    answer = narrow_caller.ask(pipeline, short())
    assert (answer.errors, len(answer.samples())) == ([], 5 * 3_840)


def test_a_stream_that_is_late_gives_back_its_place_of_the_codec(narrow_server: Any, pipeline: str) -> None:
    """Even where the talker ended it with an error, and so nothing more came to the codec."""
    chunks = [message for message in with_deadline(narrow_server, pipeline, 1.0) if message.infer_response.outputs]
    assert chunks
    until = time.monotonic() + SETTLE_SECONDS
    while (places := gauge(narrow_server, "slots_in_use", "voxcpm2_codec")) and time.monotonic() < until:
        time.sleep(0.1)
    assert places == 0


def test_a_stream_that_is_late_leaves_the_queue(narrow_server: Any, narrow_caller: Any, pipeline: str) -> None:
    holder = begin(narrow_caller, pipeline, 20.0)
    (text,), finals = errors_and_finals(with_deadline(narrow_server, pipeline, 1.0))
    assert text.endswith(LATE)
    assert finals == 1
    assert not next(holder).error_message
    holder.cancel()
    assert not narrow_caller.ask(pipeline, short()).errors


def test_a_stream_in_time_is_whole(narrow_server: Any, pipeline: str) -> None:
    errors, finals = errors_and_finals(with_deadline(narrow_server, pipeline, 60, "Hi.", 4))
    assert (errors, finals) == ([], 1)


def test_a_deadline_over_http_is_obeyed(narrow_server: Any, narrow_caller: Any, pipeline: str) -> None:
    """Triton's generate_stream takes its own parameter ``timeout`` for one of the model's."""
    client = HttpSpeechClient(narrow_server.http_url, pipeline)
    with pytest.raises(DeadlineExceeded, match=LATE):
        client.synthesize("word " * 45, deadline=1.0, inference_steps=100)
    assert not narrow_caller.ask(pipeline, short()).errors


@pytest.mark.parametrize("timeout", ["soon", -1, 1.5, True, 10**18])
def test_a_timeout_that_is_none_is_refused(narrow_server: Any, pipeline: str, timeout: Any) -> None:
    url = f"{narrow_server.http_url}/v2/models/{pipeline}/generate_stream"
    body = json.dumps({"TEXT": "Hi.", "parameters": {"timeout": timeout}}).encode()
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(url, body), timeout=30)
    assert "TIMEOUT: " in error.value.read().decode()


def test_a_negative_timeout_over_grpc_is_refused(narrow_server: Any, pipeline: str) -> None:
    request = infer_request(pipeline, "Hi.", "", False)
    request.parameters["timeout"].int64_param = -1
    with grpc.insecure_channel(narrow_server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        errors, _ = errors_and_finals(list(stub.ModelStreamInfer(iter((request,)), timeout=30)))
    assert "TIMEOUT: " in errors[0]
