"""One request's fault, or its like before it, never touches another's audio."""

from __future__ import annotations

import io
import itertools
import threading
from typing import Any

import numpy as np
import soundfile
from tritonclient.grpc import InferResult

GOOD = {
    "TEXT": "The quick brown fox jumps over the lazy dog.",
    "SEED": np.array([1], np.uint64),
    "MAX_SECONDS": np.array([6.0], np.float32),
    "CHUNK_SCHEDULE": np.array([1], np.int32),
}
BAD = [
    {"TEXT": ""},
    {"TEXT": b"\xff"},
    {"TEXT": "Hello.", "VOICE": "nobody"},
    {"TEXT": "Hello.", "PROMPT_AUDIO": b"RIFF"},
    {"TEXT": "Hello.", "REFERENCE_AUDIO": bytes(range(256)) * 100},
    {"TEXT": "Hello.", "CFG_VALUE": np.array([np.nan], np.float32)},
    {"TEXT": "Hello.", "SEED": np.array([1.0])},
    {"TEXT": "Hello.", "CHUNK_SCHEDULE": np.zeros(0, np.int32)},
]


def test_bad_requests_leave_a_running_stream_alone(caller: Any, pipeline: str) -> None:
    """S1: one bad request killed the engine and every stream in it."""
    solo = caller.ask(pipeline, GOOD)
    ended = threading.Event()
    refused: list[list[str]] = []

    def disturb() -> None:
        for inputs in itertools.cycle(BAD):
            refused.append(caller.ask(pipeline, inputs).errors)
            if ended.is_set() and len(refused) > len(BAD):
                return

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        disturbed = caller.ask(pipeline, GOOD)
    finally:
        ended.set()
        disturber.join(30)

    assert all(len(errors) == 1 for errors in refused)
    assert (disturbed.errors, disturbed.finals) == ([], 1)
    # Nobody else reached the talker, so this stream's batches were those of the solo run.
    assert np.array_equal(disturbed.samples(), solo.samples())


def test_prompt_audio_without_its_text_leaves_the_engine_alive(caller: Any, pipeline: str) -> None:
    """S1."""
    recording = io.BytesIO()
    soundfile.write(recording, 0.3 * np.sin(np.arange(32_000) * 0.05), 16_000, format="WAV")
    running = caller.open(pipeline, GOOD)
    first = InferResult(next(running).infer_response)
    refusal = caller.ask(pipeline, {"TEXT": "Hello.", "PROMPT_AUDIO": recording.getvalue()})
    rest = [InferResult(message.infer_response) for message in running]

    assert "PROMPT_TEXT: is missing" in refusal.errors[0]
    indices = [result.as_numpy("CHUNK_INDEX").item() for result in (first, *rest)]
    assert indices == list(range(75))
    assert rest[-1].as_numpy("FINISH_REASON").item() == b"length"


def test_fifty_streams_one_after_another_are_identical(caller: Any, pipeline: str) -> None:
    """T2: the first was fine, the second nearly empty, the third dead."""
    short = {**GOOD, "MAX_SECONDS": np.array([0.5], np.float32)}
    first = caller.ask(pipeline, short)
    assert len(first.samples()) > 0
    for _ in range(49):
        answer = caller.ask(pipeline, short)
        assert np.array_equal(answer.samples(), first.samples())
        assert answer.column("CHUNK_INDEX") == first.column("CHUNK_INDEX")


def test_polling_for_cancels_after_the_last_chunk_killed_the_server(caller: Any, speech_server: Any) -> None:
    """Triton frees a stream with its final response; a question about it after that was a crash in one of ten."""
    shortest = {**GOOD, "MAX_SECONDS": np.array([0.1], np.float32)}
    for _ in range(10):
        answers = caller.ask_all("voxcpm2", [shortest] * 8)
        assert [answer.finals for answer in answers] == [1] * 8
    assert "Signal (" not in speech_server.log_text()


def test_one_bad_request_in_a_hundred_killed_the_server(caller: Any, speech_server: Any, pipeline: str) -> None:
    """S1: an ensemble's step that failed while another was about to begin was a crash of Triton itself."""
    for _ in range(50):
        assert [len(answer.errors) for answer in caller.ask_all(pipeline, BAD)] == [1] * len(BAD)
    assert not caller.ask(pipeline, {**GOOD, "MAX_SECONDS": np.array([0.1], np.float32)}).errors
    assert "Signal (" not in speech_server.log_text()
