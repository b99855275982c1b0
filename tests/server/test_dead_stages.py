"""A stage whose process dies: whoever waits for it hears of it, though Triton itself tells nobody."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import soundfile

from triton_speech_client import ServerUnavailable
from triton_speech_client.errors import error_from_text

Serving = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]
Kill = Callable[[Any, str], None]

LONG = {"TEXT": "word " * 45, "CHUNK_SCHEDULE": np.array([1], np.int32), "INFERENCE_STEPS": np.array([100], np.int32)}
SHORT = {"TEXT": "Hi.", "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.2], np.float32)}
HAS_DIED = "the {} stage has died; what it had begun is lost, try again in a moment"


def recording(seed: int) -> bytes:
    """29 seconds of noise, each seed another."""
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, 29 * 16_000)
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV", subtype="PCM_16")
    return file.getvalue()


def test_a_talker_that_dies_in_the_middle_of_streams_ends_them(
    serving: Serving, calling: Calling, kill_stage: Kill
) -> None:
    with serving({}) as server, calling(server.grpc_url) as caller, ThreadPoolExecutor(2) as threads:
        # Slow streams, so that the talker is not killed within a call of Triton's (see below).
        streams = [caller.open("voxcpm2", {**LONG, "SEED": np.array([seed], np.uint64)}) for seed in range(2)]
        for stream in streams:
            assert not next(stream).error_message
        kill_stage(server, "voxcpm2_talker")
        for rest in threads.map(list, streams):
            errors = [message.error_message for message in rest if message.error_message]
            # A call that is made after the death is refused by Triton itself.
            assert len(errors) == 1
            assert errors[0] == HAS_DIED.format("talker") or "is not healthy" in errors[0]


def test_a_codec_that_dies_with_chunks_in_it_ends_their_streams(
    serving: Serving, calling: Calling, kill_stage: Kill
) -> None:
    """Killed while it waits: a process that dies within a call of Triton's takes a lock along, and the server down."""
    company = 16
    patience = {"deterministic": "false", "min_batch": company, "max_wait_ms": 600_000}
    with serving({"voxcpm2_codec": patience}) as server, calling(server.grpc_url) as caller:
        for name in range(company - 1):
            assert not caller.ask("voxcpm2_codec", first_chunk(str(name)), ("AUDIO",)).errors
        with ThreadPoolExecutor(1) as threads:
            # The last of the company waits for the others' next chunks.
            asked = threads.submit(caller.ask, "voxcpm2", SHORT)
            time.sleep(3.0)
            assert not asked.done()
            kill_stage(server, "voxcpm2_codec")
            assert asked.result().errors == [HAS_DIED.format("codec")]


def first_chunk(stream: str) -> dict[str, Any]:
    numbers = {name: np.array([0], np.int32) for name in ("SKIP_FRAMES", "CHUNK_INDEX")}
    return {"STREAM_ID": stream, "LATENTS": np.zeros((1, 2, 8), np.float32), "FINISH_REASON": "", **numbers}


def test_a_reference_stage_that_dies_ends_the_requests_that_it_had_taken(
    serving: Serving, calling: Calling, kill_stage: Kill
) -> None:
    with serving({"voxcpm2_reference": {"max_encodes": 1}}) as server, calling(server.grpc_url) as caller:
        inputs = [{**SHORT, "REFERENCE_AUDIO": recording(seed)} for seed in range(8)]
        with ThreadPoolExecutor(9) as threads:
            answers = [threads.submit(caller.ask, "voxcpm2", one) for one in inputs]
            add = {"COMMAND": "add", "NAME": "ann", "REFERENCE_AUDIO": recording(99)}
            adding = threads.submit(caller.ask, "voices", add, ("RESULT",))
            time.sleep(1.0)
            kill_stage(server, "voxcpm2_reference")
            texts = [text for answer in answers for text in answer.result().errors]
        told = HAS_DIED.format("reference")
        # Those that it had not taken yet are refused by Triton itself.
        assert told in texts
        assert all(text == told or "is not healthy" in text for text in [*texts, *adding.result().errors])
        assert len(adding.result().errors) == 1
        assert isinstance(error_from_text(told), ServerUnavailable)
