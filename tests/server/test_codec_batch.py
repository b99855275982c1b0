"""Many streams in the codec at once: each hears what it would hear alone. The voice is the quickstart one."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferResult

# The first test that needs a graph waits for its export: a minute, on a busy machine several.
pytestmark = pytest.mark.timeout(900)

CODEC = "voxcpm2_codec"
QUICKSTART = Path(__file__).resolve().parents[2] / "checkpoints" / "quickstart"
PATCH_SHAPE = (2, 32)
SAMPLES = 1920
"""Of one patch."""
PLACES = 64
OUTPUTS = ("AUDIO", "CHUNK_INDEX", "FINISH_REASON")
WAYS: dict[str, tuple[dict[str, object], float]] = {
    "deterministic": ({"deterministic": "true"}, 0.0),
    "batched": ({"deterministic": "false", "max_batch": 32}, 1e-6),
    "batched, with a window": (
        {"deterministic": "false", "min_batch": 8, "max_wait_ms": 5, "batches_in_flight": 2},
        1e-6,
    ),
    "onnxruntime, deterministic": ({"deterministic": "true", "runtime": "onnxruntime"}, 0.0),
    "onnxruntime, batched": ({"deterministic": "false", "max_batch": 32, "runtime": "onnxruntime"}, 1e-6),
}
"""Parameters of the codec, and how far a stream's samples may be from those it has alone."""


@dataclass(frozen=True)
class CodecServer:
    caller: Any
    tolerance: float
    log_text: Callable[[], str]


@pytest.fixture(scope="module", params=WAYS)
def codec(
    request: pytest.FixtureRequest,
    serving: Callable[..., AbstractContextManager[Any]],
    calling: Callable[[str], AbstractContextManager[Any]],
) -> Iterator[CodecServer]:
    if not (QUICKSTART / "config.json").is_file():
        pytest.skip("checkpoints/quickstart is not there")
    parameters, tolerance = WAYS[request.param]
    if "runtime" in parameters:
        parameters = {**parameters, "onnx_graphs": request.getfixturevalue("quickstart_codec_graphs")}
    with (
        serving({CODEC: {**parameters, "max_streams": PLACES}}, QUICKSTART) as server,
        calling(server.grpc_url) as caller,
    ):
        yield CodecServer(caller, tolerance, server.log_text)


def draw(patches: int, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((patches, *PATCH_SHAPE)).astype(np.float32)


def cut(patches: Any, rng: random.Random) -> list[Any]:
    """A stream's chunks by a random schedule; some end with one that holds nothing."""
    sizes = []
    while sum(sizes) < len(patches):
        sizes.append(min(rng.choice([1, 1, 2, 3, 4, 8]), len(patches) - sum(sizes)))
    return [*np.split(patches, np.cumsum(sizes)[:-1]), *([patches[:0]] if rng.random() < 0.3 else [])]


def chunk(stream: str, index: int, patches: Any, finish: str = "", skipped: int = 0) -> dict[str, Any]:
    return {
        "STREAM_ID": stream,
        "LATENTS": patches,
        "SKIP_FRAMES": np.array([skipped], np.int32),
        "CHUNK_INDEX": np.array([index], np.int32),
        "FINISH_REASON": finish,
    }


def chunks(pieces: list[Any], stream: str = "") -> list[dict[str, Any]]:
    """The requests of a whole stream."""
    stream = stream or uuid.uuid4().hex
    last = len(pieces) - 1
    return [chunk(stream, i, piece, "stop" if i == last else "") for i, piece in enumerate(pieces)]


def say(codec: CodecServer, inputs: dict[str, Any]) -> Any:
    """The samples of one chunk."""
    answer = codec.caller.ask(CODEC, inputs, OUTPUTS)
    assert (answer.errors, answer.finals) == ([], 1)
    return answer.samples()


def refusal(codec: CodecServer, inputs: dict[str, Any]) -> str:
    answer = codec.caller.ask(CODEC, inputs, OUTPUTS)
    assert (answer.responses, len(answer.errors)) == ([], 1)
    return str(answer.errors[0])


def release(codec: CodecServer, stream: str) -> None:
    assert not codec.caller.ask(CODEC, {"CONTROL": "release", "STREAM_ID": stream}, ("SAMPLE_RATE",)).errors


def hear(codec: CodecServer, requests: list[dict[str, Any]]) -> Any:
    """A stream's samples, each chunk sent when the one before it has been heard."""
    return np.concatenate([say(codec, inputs) for inputs in requests])


def alone(codec: CodecServer, patches: Any) -> Any:
    return hear(codec, chunks([patches]))


def assert_equal(codec: CodecServer, heard: list[Any], solos: list[Any]) -> None:
    assert [len(one) for one in heard] == [len(solo) for solo in solos]
    assert max(float(np.abs(one - solo).max()) for one, solo in zip(heard, solos, strict=True)) <= codec.tolerance
    assert all(float(solo.std()) > 1e-3 for solo in solos), "silence would prove nothing"


def test_sixty_four_streams_at_once_sound_as_each_does_alone(codec: CodecServer) -> None:
    """T4, T5, S15: whatever their lengths, their chunks and their company."""
    rng = random.Random(1)
    streams = [draw(rng.randint(1, 14), seed) for seed in range(PLACES)]
    solos = [alone(codec, patches) for patches in streams]
    for _ in range(2):
        cuts = [cut(patches, rng) for patches in streams]
        with ThreadPoolExecutor(PLACES) as threads:
            heard = list(threads.map(lambda pieces: hear(codec, chunks(pieces)), cuts))
        assert_equal(codec, heard, solos)


def test_chunks_sent_without_waiting_are_answered_in_order(codec: CodecServer) -> None:
    """As an ensemble sends them: several chunks of one stream are in the codec at once."""
    rng = random.Random(2)
    streams = [draw(12, 100 + seed) for seed in range(8)]
    solos = [alone(codec, patches) for patches in streams]

    def rush(patches: Any) -> Any:
        requests = chunks(cut(patches, rng))
        messages = list(codec.caller.open_many(CODEC, requests, OUTPUTS))
        assert not [message.error_message for message in messages if message.error_message]
        results = [InferResult(message.infer_response) for message in messages if message.infer_response.outputs]
        assert [result.as_numpy("CHUNK_INDEX").item() for result in results] == list(range(len(requests)))
        return np.concatenate([result.as_numpy("AUDIO") for result in results])

    with ThreadPoolExecutor(8) as threads:
        assert_equal(codec, list(threads.map(rush, streams)), solos)


def test_released_streams_are_never_heard_again(codec: CodecServer) -> None:
    """T4: every place is taken, given back in the middle, and taken by somebody else."""
    fresh = [draw(5, 200 + seed) for seed in range(PLACES)]
    solos = [alone(codec, patches) for patches in fresh]
    names = [uuid.uuid4().hex for _ in range(PLACES)]
    with ThreadPoolExecutor(PLACES) as threads:
        list(threads.map(lambda name: say(codec, chunk(name, 0, draw(3, names.index(name)))), names))
        assert "is full (64)" in refusal(codec, chunk("one too many", 0, draw(1, 0)))
        list(threads.map(lambda name: release(codec, name), names))
        heard = list(threads.map(lambda patches: hear(codec, chunks(np.split(patches, 5))), fresh))
    assert_equal(codec, heard, solos)
    assert "STREAM_ID: is not known" in refusal(codec, chunk(names[0], 1, draw(1, 0)))


def test_a_release_answers_what_is_still_being_decoded(codec: CodecServer) -> None:
    stream = uuid.uuid4().hex
    gone = {"CONTROL": "release", "STREAM_ID": stream}
    messages = list(codec.caller.open_many(CODEC, [chunk(stream, 0, draw(128, 0)), gone], OUTPUTS))
    texts = [message.error_message for message in messages if message.error_message]
    assert texts == ["the stream was released before this chunk was decoded"]
    assert not any(message.infer_response.outputs for message in messages)
    assert len(say(codec, chunk(stream, 0, draw(1, 0), "stop"))) == SAMPLES


def test_streams_that_go_wrong_leave_the_others_alone(codec: CodecServer) -> None:
    """S8: each hears of its own fault, in clean words."""
    streams = [draw(10, 300 + seed) for seed in range(12)]
    solos = [alone(codec, patches) for patches in streams]
    nan = draw(2, 0)
    nan[1, 0, 3] = np.nan
    infinite = draw(1, 0)
    infinite[0, 0, 0] = np.inf

    def wrong(_: int) -> list[str]:
        jumping, poisoned, late = (uuid.uuid4().hex for _ in range(3))
        say(codec, chunk(jumping, 0, draw(1, 1)))
        say(codec, chunk(poisoned, 0, draw(1, 2)))
        return [
            refusal(codec, chunk(jumping, 7, draw(1, 1))),
            refusal(codec, chunk(jumping, 1, draw(1, 1))),
            refusal(codec, chunk(poisoned, 1, nan)),
            refusal(codec, chunk(poisoned, 2, draw(1, 2))),
            refusal(codec, chunk(late, 3, draw(1, 1))),
            refusal(codec, chunk(late, 0, infinite)),
        ]

    with ThreadPoolExecutor(16) as threads:
        faults = [threads.submit(wrong, index) for index in range(4)]
        heard = list(threads.map(lambda patches: hear(codec, chunks(np.split(patches, 10))), streams))
    assert_equal(codec, heard, solos)
    for fault in faults:
        assert fault.result() == [
            "CHUNK_INDEX: is 7, chunk 1 was due",
            "STREAM_ID: is not known to the codec, or its stream was silent for too long",
            "the talker made NaN or infinite latents; the stream was ended",
            "STREAM_ID: is not known to the codec, or its stream was silent for too long",
            "STREAM_ID: is not known to the codec, or its stream was silent for too long",
            "the talker made NaN or infinite latents; the stream was ended",
        ]


def test_priming_patches_are_decoded_and_not_heard(codec: CodecServer) -> None:
    patches = draw(6, 400)
    whole = alone(codec, patches)
    primed = say(codec, chunk(uuid.uuid4().hex, 0, patches, "stop", skipped=4))
    assert_equal(codec, [primed], [whole[4 * SAMPLES :]])


def test_no_place_is_lost_and_nothing_went_wrong_unseen(codec: CodecServer) -> None:
    names = [uuid.uuid4().hex for _ in range(PLACES)]
    with ThreadPoolExecutor(PLACES) as threads:
        assert all(len(s) == SAMPLES for s in threads.map(lambda n: say(codec, chunk(n, 0, draw(1, 0))), names))
        list(threads.map(lambda name: release(codec, name), names))
    log = codec.log_text()
    assert "Traceback" not in log
    assert "Signal (" not in log


def test_chunks_that_wait_for_company_are_all_inside_the_codec(
    serving: Callable[..., AbstractContextManager[Any]], calling: Callable[[str], AbstractContextManager[Any]]
) -> None:
    """Triton hands over one request at a time; an unanswered one must not keep the next one out."""
    names = [uuid.uuid4().hex for _ in range(8)]
    patience = {"deterministic": "false", "min_batch": len(names), "max_wait_ms": 600_000}
    with (
        serving({CODEC: patience}) as server,
        calling(server.grpc_url) as caller,
        ThreadPoolExecutor(len(names)) as threads,
    ):
        codec = CodecServer(caller, 0.0, server.log_text)

        def send(name: str, index: int) -> Any:
            return threads.submit(say, codec, chunk(name, index, np.zeros((1, 2, 8), np.float32)))

        # The first seven go at once, for there are not eight to wait for. The eighth waits for the seven.
        for name in names[:-1]:
            send(name, 0).result()
        waiting = [send(names[-1], 0), *(send(name, 1) for name in names[:-1])]
        assert [len(one.result()) for one in waiting] == [3840] * len(names)
