"""Callers who leave, in whatever way and at whatever moment: their streams end, and both places are free again.

The servers have one place in the talker and one in the codec, and the codec's never comes back by itself.
"""

from __future__ import annotations

import http.client
import json
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

WAIT_SECONDS = 60
TEXT = "word " * 45
STEPS = 100
# Chunks of which moment: one a frame, a long silence after the first one, a long silence before it.
PHASES = {"between_chunks": [1, 64], "while_chunks_come": [1], "before_the_first_chunk": [16]}

Leave = Callable[[], None]
Way = Callable[["Place", Any], AbstractContextManager[Leave]]
Inputs = dict[str, Any]


Serving = Callable[..., AbstractContextManager[Any]]


def one_place(waiting: int) -> dict[str, dict[str, object]]:
    return {
        "voxcpm2_talker": {"max_num_seqs": 1, "max_waiting": waiting},
        "voxcpm2_codec": {"max_streams": 1, "idle_seconds": 36_000},
    }


@pytest.fixture(scope="module")
def server(serving: Serving) -> Iterator[Any]:
    with serving(one_place(waiting=4)) as server:
        yield server


@pytest.fixture(scope="module")
def small_caller(server: Any, calling: Callable[[str], AbstractContextManager[Any]]) -> Iterator[Any]:
    with calling(server.grpc_url) as caller:
        yield caller


@pytest.fixture(scope="module")
def gateway_url(server: Any) -> Iterator[str]:
    code = "import sys; from triton_speech_client.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "gateway", "--triton", server.grpc_url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


def slow(schedule: list[int]) -> Inputs:
    """Some 250 frames, each of which takes its time."""
    return {
        "TEXT": TEXT,
        "SEED": np.array([1], np.uint64),
        "INFERENCE_STEPS": np.array([STEPS], np.int32),
        "CHUNK_SCHEDULE": np.array(schedule, np.int32),
    }


def at_the_talker(frames: int) -> Inputs:
    """A stream of the stage itself."""
    return {
        "TOKENS": np.ones(16, np.int32),
        "SEED": np.zeros(1, np.uint64),
        "MAX_FRAMES": np.array([frames], np.int32),
        "CHUNK_SCHEDULE": np.ones(1, np.int32),
        "CFG_VALUE": np.full(1, 2, np.float32),
        "INFERENCE_STEPS": np.full(1, STEPS, np.int32),
    }


def chunks_decoded(server: Any) -> int:
    """How many chunks the codec has been given since its start, ends without a patch among them."""
    with InferenceServerClient(server.grpc_url) as client:
        (model,) = client.get_inference_statistics("voxcpm2_codec").model_stats
    return int(model.inference_stats.success.count)


class Place:
    """What every way of leaving is given: where to call, and whether its caller hears before it leaves."""

    def __init__(self, server: Any, gateway_url: str, pipeline: str, schedule: list[int], hears: bool) -> None:
        self.server, self.gateway_url, self.pipeline = server, gateway_url, pipeline
        self.schedule, self.hears = schedule, hears


@contextmanager
def cancels(place: Place, caller: Any) -> Iterator[Leave]:
    call = caller.open(place.pipeline, slow(place.schedule))
    if place.hears:
        assert not next(call).error_message
    yield call.cancel


@contextmanager
def has_a_deadline(place: Place, caller: Any) -> Iterator[Leave]:
    # Not long enough for most of the stream on a fast machine, nor too short for its first chunk on a slow one.
    for seconds in (0.3, 0.6, 1.2, 2.4, 4.8, 9.6) if place.hears else (1.2,):
        call = caller.open(place.pipeline, slow(place.schedule), seconds=seconds)
        if not place.hears or hears_one(call):
            break

    def wait_for_it() -> None:
        with pytest.raises(grpc.RpcError) as error:
            list(call)
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED

    yield wait_for_it


def hears_one(call: Any) -> bool:
    try:
        return not next(call).error_message
    except grpc.RpcError:
        return False


@contextmanager
def stops_its_stream(place: Place, caller: Any) -> Iterator[Leave]:
    """With NVIDIA's client, as its users do."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client = InferenceServerClient(place.server.grpc_url)
    client.start_stream(lambda result, error: answers.put(result))
    client.async_stream_infer(place.pipeline, tensors(slow(place.schedule)))
    if place.hears:
        assert answers.get(timeout=WAIT_SECONDS) is not None
    yield lambda: client.stop_stream(cancel_requests=True)
    client.close()


@contextmanager
def is_killed(place: Place, caller: Any) -> Iterator[Leave]:
    command = [sys.executable, "-c", KILLED, place.server.grpc_url, place.pipeline, json.dumps(place.schedule)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        if place.hears:
            assert process.stdout.readline() == "heard\n"
        yield process.kill
        process.kill()


KILLED = f"""
import json, queue, sys
import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput
url, pipeline, schedule = sys.argv[1:]
answers = queue.SimpleQueue()
client = InferenceServerClient(url)
client.start_stream(lambda result, error: answers.put(result))
inputs = []
for name, kind, array in (
    ("TEXT", "BYTES", np.array([{TEXT.encode()!r}], np.object_)),
    ("INFERENCE_STEPS", "INT32", np.array([{STEPS}], np.int32)),
    ("CHUNK_SCHEDULE", "INT32", np.array(json.loads(schedule), np.int32)),
):
    inputs.append(InferInput(name, list(array.shape), kind))
    inputs[-1].set_data_from_numpy(array)
client.async_stream_infer(pipeline, inputs)
print("asked", flush=True)
answers.get()
print("heard", flush=True)
while True:
    answers.get()
"""


@contextmanager
def closes_its_events(place: Place, caller: Any) -> Iterator[Leave]:
    body = {"TEXT": TEXT, "SEED": 1, "INFERENCE_STEPS": STEPS, "CHUNK_SCHEDULE": place.schedule}
    with over_http(place.server.http_url, f"/v2/models/{place.pipeline}/generate_stream", body, place.hears) as leave:
        yield leave


@contextmanager
def leaves_the_gateway(place: Place, caller: Any) -> Iterator[Leave]:
    body = {"input": TEXT, "model": place.pipeline, "seed": 1, "inference_steps": STEPS, "response_format": "pcm"}
    with over_http(place.gateway_url, "/v1/audio/speech", body, place.hears) as leave:
        yield leave


@contextmanager
def over_http(url: str, path: str, body: Any, hears: bool) -> Iterator[Leave]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=WAIT_SECONDS)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    with ExitStack() as stack:
        stack.callback(connection.close)
        if hears:
            answer = stack.enter_context(connection.getresponse())
            assert answer.read(1)
        yield stack.close


def tensors(inputs: Inputs) -> list[Any]:
    made = []
    for name, value in inputs.items():
        array = np.array([value.encode()], np.object_) if isinstance(value, str) else value
        kind = {"O": "BYTES", "u": "UINT64", "i": "INT32"}[array.dtype.kind]
        made.append(InferInput(name, list(array.shape), kind))
        made[-1].set_data_from_numpy(array)
    return made


def serve_the_next_one(caller: Any, pipeline: str) -> None:
    """A short request through both stages, once both have a place for it."""
    short = {"TEXT": "Hi.", "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.1], np.float32)}
    limit = time.monotonic() + WAIT_SECONDS
    while (answer := caller.ask(pipeline, short)).errors:
        assert "is full" in answer.errors[0]
        assert time.monotonic() < limit
    assert answer.column("FINISH_REASON")[-1] == b"length"


def whole(caller: Any, server: Any, schedule: list[int]) -> int:
    """How many chunks the codec is given of such a stream when nobody leaves it. Quicker frames are as many."""
    before = chunks_decoded(server)
    assert not caller.ask("voxcpm2", {**slow(schedule), "INFERENCE_STEPS": np.array([2], np.int32)}).errors
    return chunks_decoded(server) - before


def check_that_it_ends(place: Place, caller: Any, way: Way, schedule: list[int]) -> None:
    """With one place, the next caller is served when the stream has ended: by being left, not by coming to its end."""
    all_chunks = whole(caller, place.server, schedule)
    with way(place, caller) as leave:
        before = chunks_decoded(place.server)
        if not place.hears:
            wait_until_it_speaks(caller)
        leave()
        serve_the_next_one(caller, place.pipeline)
    # Where there are few, almost all: the stream's end is told, maybe twice, and one chunk is the next caller's.
    assert chunks_decoded(place.server) - before <= max(all_chunks // 2, min(all_chunks, 4))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("way", [cancels, has_a_deadline, stops_its_stream, is_killed, closes_its_events])
def test_a_caller_who_leaves_frees_both_places(
    server: Any,
    small_caller: Any,
    pipeline: str,
    way: Way,
    phase: str,
) -> None:
    place = Place(server, "", pipeline, PHASES[phase], hears=phase != "before_the_first_chunk")
    check_that_it_ends(place, small_caller, way, place.schedule)


def test_a_caller_who_leaves_the_gateway_frees_both_places(
    server: Any, gateway_url: str, small_caller: Any, pipeline: str
) -> None:
    place = Place(server, gateway_url, pipeline, [], hears=True)
    check_that_it_ends(place, small_caller, leaves_the_gateway, [1, 2, 4])


def test_an_ensemble_that_fails_ends_its_talker(serving: Serving, calling: Any) -> None:
    """Triton tells the caller of the codec's error, and the talker nothing: it spoke on to its end for nobody.

    Of two places one is held by a stream that is shorter than the failed one; the next caller begins before its end.
    """
    parameters = one_place(waiting=4)
    parameters["voxcpm2_talker"] |= {"max_num_seqs": 2, "lost_seconds": 0.5}
    with (
        serving(parameters) as server,
        calling(server.grpc_url) as caller,
        ThreadPoolExecutor(1) as threads,
    ):
        held = caller.open("voxcpm2", {**slow([1, 64]), "SEED": np.array([2], np.uint64)})
        assert not next(held).error_message
        failed = caller.open("voxcpm2_pipeline", slow([1]))
        assert "the codec is full" in next(failed).error_message
        held.cancel()
        shorter = threads.submit(list, caller.open("voxcpm2_talker", at_the_talker(120), ("FINISH_REASON",)))
        assert not next(caller.open("voxcpm2_talker", at_the_talker(1), ("FINISH_REASON",))).error_message
        assert not shorter.done()


@pytest.mark.parametrize("way", [cancels, has_a_deadline, stops_its_stream, is_killed])
def test_a_caller_who_leaves_the_queue_makes_room_in_it(
    crowded_server: Any, pipeline: str, calling: Any, way: Way
) -> None:
    """The queue has one place. The stream that is waited for still runs when there is room again.

    Over HTTP Triton itself sees only with the first chunk that nobody is there.
    """
    with calling(crowded_server.grpc_url) as caller, ThreadPoolExecutor(1) as threads:
        occupant = caller.open("voxcpm2_talker", at_the_talker(230), ("FINISH_REASON",))
        assert not next(occupant).error_message
        runs = threads.submit(list, occupant)
        with way(Place(crowded_server, "", pipeline, [1], hears=False), caller) as leave:
            # What asks whether there is room must not be there before what is to take it.
            time.sleep(0.3)
            assert is_full(caller)
            leave()
            while is_full(caller):
                assert not runs.done()
        assert not runs.done()
        occupant.cancel()
        with pytest.raises(grpc.RpcError):
            runs.result(WAIT_SECONDS)
        serve_the_next_one(caller, pipeline)


@pytest.fixture(scope="module")
def crowded_server(serving: Serving) -> Iterator[Any]:
    with serving(one_place(waiting=1)) as server:
        yield server


def is_full(caller: Any) -> bool:
    """Whether the talker's queue refuses another one; if not, it is taken out again."""
    answer = first_answer(caller.open("voxcpm2_pipeline", slow([64]), seconds=2.0))
    return answer is not None and "is full" in answer.error_message


def first_answer(call: Any) -> Any:
    """The first message, None where there is none in time."""
    try:
        return next(call)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return None


def wait_until_it_speaks(caller: Any) -> None:
    """Returns once the talker's place is taken: another stream there does not begin."""
    limit = time.monotonic() + WAIT_SECONDS
    while first_answer(caller.open("voxcpm2_talker", at_the_talker(1), ("FINISH_REASON",), seconds=0.2)) is not None:
        assert time.monotonic() < limit
