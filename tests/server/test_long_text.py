"""Texts of many sentences: one stream, one voice, one end."""

from __future__ import annotations

import io
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import soundfile
from tritonclient.grpc import InferenceServerClient, service_pb2_grpc

from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.long_text import cut, segment_seed
from triton_speech_client.wire import infer_request

SEGMENT_CHARS = 120
"""So short that the tiny model's room is never too small for a segment of Latin letters."""
FRAME = 3_840
FRAME_SECONDS = 0.08
EACH_FRAME = np.array([1], np.int32)
SENTENCES = (
    "Dr. Smith paid 3.50 for it. “Was it too much?” she asked. He did not think so… They went home! "
    "The train to the north leaves at nine; do not be late, for nobody will wait. Why should they? "
)
MIXED = SENTENCES + "\u4f60\u597d\u3002\u4eca\u5929\u662f\u661f\u671f\u4e00\uff01\u4f60\u53bb\u5417\uff1f" * 30
AHEAD_SECONDS, QUEUE_SECONDS = 2.0, 1.0

Serving = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]


def request(text: str, seed: int = 1, **others: Any) -> dict[str, Any]:
    return {"TEXT": text, "SEED": np.array([seed], np.uint64), **others}


def recording() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(np.arange(24_000) * 0.05), 16_000, format="WAV")
    return file.getvalue()


def stretches(text: str) -> list[str]:
    return cut(text, SEGMENT_CHARS, lambda stretch: True)


def without_following(folder: Path) -> Path:
    """The checkpoint, as one that was not trained to follow a reference."""
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"follows_reference": False}))
    return folder


@pytest.fixture(scope="module")
def server(serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Streams stop after four frames, and are never held back."""
    folder = without_following(write_tiny_checkpoint(tmp_path_factory.mktemp("a") / "tiny", stops_at_once=True))
    parameters = {
        "voxcpm2_frontend": {"segment_chars": SEGMENT_CHARS},
        "voxcpm2_talker": {"deterministic": "true", "max_num_seqs": 2},
        "voxcpm2": {"max_ahead_seconds": 1e6},
    }
    with serving(parameters, folder) as server:
        yield server


@pytest.fixture(scope="module")
def long_caller(server: Any, calling: Calling) -> Iterator[Any]:
    with calling(server.grpc_url) as caller:
        yield caller


@pytest.fixture(scope="module")
def paced_server(serving: Serving) -> Iterator[Any]:
    """One place everywhere, segments of three seconds, and at most two seconds ahead of who listens."""
    parameters = {
        "voxcpm2_talker": {"max_num_seqs": 1, "max_waiting": 4},
        "voxcpm2_frontend": {"frames_per_token": 0.4, "segment_chars": SEGMENT_CHARS},
        "voxcpm2": {"max_streams": 1, "max_ahead_seconds": AHEAD_SECONDS, "queue_seconds": QUEUE_SECONDS},
    }
    with serving(parameters) as server:
        yield server


@pytest.fixture
def paced_caller(paced_server: Any, calling: Calling) -> Iterator[Any]:
    with calling(paced_server.grpc_url) as caller:
        yield caller
        deadline = time.monotonic() + 30
        while caller.ask("voxcpm2", request("Hi.")).errors:
            assert time.monotonic() < deadline, "the stream before keeps its place"
            time.sleep(0.05)


def begin(caller: Any, inputs: dict[str, Any]) -> Any:
    """A stream whose first chunk has come. The one place is free a little after the stream before has ended."""
    deadline = time.monotonic() + 30
    call = caller.open("voxcpm2", inputs)
    while text := next(call).error_message:
        assert "is full" in text
        assert time.monotonic() < deadline
        call = caller.open("voxcpm2", inputs)
    return call


def chunks_made(server: Any) -> int:
    """How many chunks the codec has been given since its start."""
    with InferenceServerClient(server.grpc_url) as client:
        (model,) = client.get_inference_statistics("voxcpm2_codec").model_stats
    return int(model.inference_stats.success.count)


def test_twenty_thousand_characters_are_one_stream(long_caller: Any) -> None:
    """A text over the model's room was refused, or squeezed into it."""
    text = (SENTENCES * 120)[:20_000]
    answer = long_caller.ask("voxcpm2", request(text))
    assert (answer.errors, answer.finals) == ([], 1)
    segments = len(stretches(text))
    assert segments > 60
    assert len(answer.samples()) == 4 * FRAME * segments
    assert answer.column("CHUNK_INDEX") == list(range(len(answer.responses)))
    assert answer.column("FINISH_REASON") == [*[b""] * (len(answer.responses) - 1), b"stop"]


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"INSTRUCTION": "A deep voice."},
        {"REFERENCE_AUDIO": recording()},
        {"PROMPT_AUDIO": recording(), "PROMPT_TEXT": "As I said, "},
    ],
    ids=lambda others: "+".join(others) or "plain",
)
def test_a_long_text_is_its_segments_one_after_the_other(long_caller: Any, others: dict[str, Any]) -> None:
    """Bit for bit, with the seeds that follow from the first, in the voice that was given."""
    text = SENTENCES * 2
    whole = long_caller.ask("voxcpm2", request(text, 7, **others))
    parts = [
        long_caller.ask("voxcpm2", request(part, segment_seed(7, index), **others)).samples()
        for index, part in enumerate(stretches(text))
    ]
    assert len(parts) > 2
    assert np.array_equal(whole.samples(), np.concatenate(parts))


def test_a_text_that_fits_is_spoken_as_before(long_caller: Any) -> None:
    text = SENTENCES[:SEGMENT_CHARS]
    both = [long_caller.ask(name, request(text, 3)) for name in ("voxcpm2", "voxcpm2_pipeline")]
    assert np.array_equal(both[0].samples(), both[1].samples())


def test_other_outputs_run_on_too(long_caller: Any) -> None:
    outputs = ("PCM16", "CHUNK_INDEX")
    answer = long_caller.ask("voxcpm2", request(SENTENCES * 2), outputs)
    assert {output.name for one in answer.responses for output in one.get_response().outputs} == set(outputs)
    assert answer.column("CHUNK_INDEX") == list(range(len(answer.responses)))


def test_a_text_of_several_scripts_is_spoken_whole(long_caller: Any) -> None:
    """Where the tokens of a segment do not fit the model, it is cut further, not refused in the middle."""
    answer = long_caller.ask("voxcpm2", request(MIXED))
    assert (answer.errors, answer.finals) == ([], 1)
    assert len(answer.samples()) >= 4 * FRAME * len(stretches(MIXED))


def test_long_texts_share_the_server(long_caller: Any) -> None:
    """More of them than slots: each has its own samples, in order."""
    every = [request(SENTENCES * 2, seed) for seed in range(5)]
    alone = [long_caller.ask("voxcpm2", one).samples() for one in every]
    together = long_caller.ask_all("voxcpm2", every)
    for answer, expected in zip(together, alone, strict=True):
        assert (answer.errors, answer.finals) == ([], 1)
        assert np.array_equal(answer.samples(), expected)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("voxcpm2", "x" * 50_001, "TEXT: has 50001 characters, at most 50000 are allowed"),
        ("voxcpm2", "x" * 2**20, "at most 50000"),
        ("voxcpm2_pipeline", "x" * 4097, "at most 4096 are allowed; voxcpm2 speaks up to 50000 characters"),
        ("voxcpm2_pipeline", "word " * 400, "tokens, at most 256 fit this model; voxcpm2 speaks up to 50000"),
    ],
    ids=["too_long", "a_megabyte", "too_long_for_the_ensemble", "too_many_tokens_for_the_ensemble"],
)
def test_a_text_too_long_is_refused_at_once_in_words(
    server: Any, long_caller: Any, name: str, text: str, says: str
) -> None:
    answer = long_caller.ask(name, request(text))
    assert (answer.responses, answer.finals) == ([], 1)
    assert says in answer.errors[0]
    url = f"{server.http_url}/v2/models/{name}/generate_stream"
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(url, json.dumps({"TEXT": text}).encode()), timeout=30)
    assert (error.value.code, says in error.value.read().decode()) == (400, True)


def test_max_seconds_is_of_the_whole_stream(paced_caller: Any) -> None:
    """It reaches into the second segment, and what is cut says so."""
    answer = paced_caller.ask("voxcpm2", request(SENTENCES * 4, MAX_SECONDS=np.array([4.0], np.float32)))
    assert len(answer.samples()) == 50 * FRAME
    assert answer.column("FINISH_REASON")[-1] == b"length"
    assert (answer.column("FINISH_REASON")[:-1], answer.finals) == ([b""] * (len(answer.responses) - 1), 1)


def test_later_segments_follow_the_voice_of_the_first(paced_caller: Any) -> None:
    """Each segment in another random voice is what a checkpoint made of a text without one."""
    text = SENTENCES
    first, second = stretches(text)
    whole = paced_caller.ask("voxcpm2", request(text, 5)).samples()
    alone = paced_caller.ask("voxcpm2", request(first, 5)).samples()
    assert np.array_equal(whole[: len(alone)], alone)

    names = ("TOKENS", "SEED", "MAX_FRAMES", "CFG_VALUE", "INFERENCE_STEPS")
    spoken = np.zeros((0, 2, 8), np.float32)
    for index, part in enumerate((first, second)):
        parts = paced_caller.ask("voxcpm2_frontend", request(part, segment_seed(5, index)), ()).responses[0]
        given = {name: parts.as_numpy(name) for name in names}
        if index:
            given["REFERENCE_LATENTS"] = spoken[:64]
        latents = paced_caller.ask("voxcpm2_talker", given, ("LATENTS",)).samples("LATENTS")
        spoken = latents
    codec = {
        "STREAM_ID": "test",
        "LATENTS": spoken,
        "SKIP_FRAMES": np.array([0], np.int32),
        "CHUNK_INDEX": np.array([0], np.int32),
        "FINISH_REASON": "stop",
    }
    expected = paced_caller.ask("voxcpm2_codec", codec).samples()
    np.testing.assert_allclose(whole[len(alone) :], expected, rtol=0, atol=1e-5)


def test_a_reader_that_does_not_read_is_not_spoken_to_for_ever(paced_server: Any, paced_caller: Any) -> None:
    """Triton queues what a slow reader has not taken: a long text is made no faster than it can be heard."""
    before, started = chunks_made(paced_server), time.monotonic()
    call = begin(paced_caller, request(SENTENCES * 20, CHUNK_SCHEDULE=EACH_FRAME))
    time.sleep(5)
    made = FRAME_SECONDS * (chunks_made(paced_server) - before)
    waited = time.monotonic() - started
    call.cancel()
    one_segment = 6.0
    assert made > one_segment
    assert made < waited + AHEAD_SECONDS + one_segment


def test_a_cancel_within_a_segment_ends_all_of_it(paced_server: Any, paced_caller: Any) -> None:
    text = request(SENTENCES * 20, CHUNK_SCHEDULE=EACH_FRAME, INFERENCE_STEPS=np.array([50], np.int32))
    call = begin(paced_caller, text)
    for _ in range(60):
        assert not next(call).error_message
    call.cancel()
    nothing_more_is_made(paced_server)


def test_a_cancel_between_segments_ends_all_of_it(paced_server: Any, paced_caller: Any) -> None:
    """While the next segment waits for the listener, no stage knows of the stream: the front door alone ends it."""
    call = begin(paced_caller, request(SENTENCES * 20, CHUNK_SCHEDULE=EACH_FRAME))
    made = -1
    while made != (made := chunks_made(paced_server)):
        time.sleep(0.3)
    call.cancel()
    nothing_more_is_made(paced_server)


def test_a_deadline_between_segments_ends_the_stream_once(paced_server: Any, paced_caller: Any) -> None:
    list(begin(paced_caller, request("Hi.")))
    asked = infer_request("voxcpm2", SENTENCES * 20, "", False, 3.5)
    messages: list[Any] = []
    with grpc.insecure_channel(paced_server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        while len(messages) < 2:
            messages = list(stub.ModelStreamInfer(iter((asked,)), timeout=60))
    assert messages[-1].error_message == "the deadline of 3.5 s has passed; the stream was ended"
    assert sum(message.infer_response.parameters["triton_final_response"].bool_param for message in messages) == 1
    assert "Signal (" not in paced_server.log_text()


def nothing_more_is_made(server: Any) -> None:
    time.sleep(0.5)
    made = chunks_made(server)
    time.sleep(AHEAD_SECONDS + 2)
    assert chunks_made(server) == made


def test_an_error_within_a_long_text_ends_the_stream_once(paced_caller: Any) -> None:
    """Others take the only slot while this one waits for its listener, and go before it until its patience ends."""
    call = begin(paced_caller, request(SENTENCES * 20, CHUNK_SCHEDULE=EACH_FRAME))
    is_over = threading.Event()
    preferred = request(SENTENCES, PRIORITY=np.array([1], np.int32), INFERENCE_STEPS=np.array([100], np.int32))

    def keep_asking() -> None:
        while not is_over.is_set():
            paced_caller.ask("voxcpm2_pipeline", preferred)

    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            threads.submit(keep_asking)
        try:
            rest = list(call)
        finally:
            is_over.set()
    assert [message.error_message for message in rest if message.error_message] == [
        "the talker is full: no place came free within 1 s; try again in 1 s"
    ]
    assert rest[-1].error_message
    assert sum(message.infer_response.parameters["triton_final_response"].bool_param for message in rest) == 1
