"""A stage whose process dies: whoever waits for it hears of it, though Triton itself tells nobody."""

from __future__ import annotations

import io
import re
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
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
HAS_NO_END = "the talker stage has died; its stream had no end, try again in a moment"


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
            # A call that is made after the death is refused by Triton itself, which may also just end the stream.
            assert len(errors) == 1
            assert errors[0] in (HAS_DIED.format("talker"), HAS_NO_END) or "is not healthy" in errors[0], errors


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


def test_a_stage_that_is_not_loaded_is_told_as_unavailable_every_time(serving: Serving, calling: Calling) -> None:
    """Triton refuses each call of it, and of a talker's refusals it loses some, so that the stream has no end."""
    with serving({}) as server, calling(server.grpc_url) as caller:
        for stage in ("voxcpm2_codec", "voxcpm2_talker"):
            server.control.unload(stage)
            for _ in range(40):
                (text,) = caller.ask("voxcpm2", SHORT).errors
                assert isinstance(error_from_text(text), ServerUnavailable), text
        counted = set(re.findall(r'"outcome": "error", "reason": "(\w+)"', server.log_text()))
        assert counted == {"stage_died"}


# Takes what it is given, and answers nothing: neither work nor questions.
SILENT_REFERENCE = """
from triton_speech.stage.reference import ReferenceStage

class TritonPythonModel(ReferenceStage):
    family = "voxcpm2"

    def execute(self, requests):
        self._held = [*getattr(self, "_held", ()), *requests]
        with open({log!r}, "a") as log:
            log.write("".join("work\\n" if request.request_id() == "spoken" else "question\\n" for request in requests))
        return [None] * len(requests)
"""


def test_a_question_that_is_lost_with_its_stage_keeps_nobody_waiting(
    serving: Serving, calling: Calling, kill_stage: Kill, tmp_path: Path
) -> None:
    """The front door asks a stage whether it lives; that question may die with the stage, and the stage be back."""
    log = tmp_path / "asked"
    parameters = {"voxcpm2": {"stall_seconds": 3600}, "voxcpm2_reference": {"threads": 1}}
    programs = {"voxcpm2_reference": SILENT_REFERENCE.format(log=str(log))}
    with serving(parameters, programs=programs) as server, calling(server.grpc_url) as caller:
        stream = caller.open("voxcpm2", {**SHORT, "REFERENCE_AUDIO": recording(1)}, request_id="spoken")
        while not log.exists() or "question" not in log.read_text(encoding="utf-8"):
            time.sleep(0.05)
        kill_stage(server, "voxcpm2_reference")
        server.control.unload("voxcpm2_reference")
        server.control.load("voxcpm2_reference", 120)
        assert [message.error_message for message in stream] == [HAS_DIED.format("reference")]


def test_requests_that_queue_for_a_frontend_that_died_hear_of_it_together(
    serving: Serving, calling: Calling, kill_stage: Kill
) -> None:
    """Triton would refuse one after the other, each after a second."""
    with serving({}) as server, calling(server.grpc_url) as caller:
        inputs = {**SHORT, "TEXT": "word " * 9_990}
        streams = [caller.open("voxcpm2", inputs) for _ in range(64)]
        while live_requests(server) < len(streams):
            time.sleep(0.01)
        kill_stage(server, "voxcpm2_frontend")
        server.control.unload("voxcpm2_frontend")
        texts = [message.error_message for stream in streams for message in stream if message.error_message]
        assert texts.count(HAS_DIED.format("frontend")) > 1


def live_requests(server: Any) -> float:
    """Of all front doors."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("triton_speech_live_requests{"))


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
