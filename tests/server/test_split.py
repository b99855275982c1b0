"""The pipeline whose diffusion runs in a stage of its own says what the others say, and ends as they end."""

from __future__ import annotations

import io
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tests.server.bad_inputs import Row, read_rows

from triton_speech_client.perf_analyzer.inputs import write_inputs

Serving = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]
Launching = Callable[..., AbstractContextManager[Any]]
Kill = Callable[..., None]
Inputs = dict[str, Any]

INLINE, SPLIT = "voxcpm2", "voxcpm2_split"
BOTH = (INLINE, SPLIT)
ROWS = [row for row in read_rows(Path(__file__).with_name("bad_inputs.yaml")) if INLINE in row.pipelines]
SETTLE_SECONDS = 20.0


def voice() -> bytes:
    samples = 0.3 * np.sin(2 * np.pi * 150 * np.arange(24_000) / 16_000)
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV")
    return file.getvalue()


def speech(text: str = "Hello there.", seed: int = 1, seconds: float = 1.0, **others: Any) -> Inputs:
    limits = {"SEED": np.array([seed], np.uint64), "MAX_SECONDS": np.array([seconds], np.float32)}
    return {"TEXT": text, **limits, **others}


def cfg(value: float) -> Inputs:
    return {"CFG_VALUE": np.array([value], np.float32)}


def steps(count: int) -> Inputs:
    return {"INFERENCE_STEPS": np.array([count], np.int32)}


def schedule(*frames: int) -> Inputs:
    return {"CHUNK_SCHEDULE": np.array(frames, np.int32)}


MIXED = [
    speech(seed=1),
    speech("The quick brown fox jumps over the lazy dog.", 2, 2.5, **cfg(3.5)),
    speech(seed=2**63 + 7, seconds=0.4, **steps(4)),
    speech(seed=3, **cfg(0), **steps(17), **schedule(3)),
    speech("word " * 45, 5, 1.5, **steps(4)),
    speech(seed=6, REFERENCE_AUDIO=voice()),
    speech(seed=7, PROMPT_AUDIO=voice(), PROMPT_TEXT="One two.", **cfg(1)),
    speech("Hi.", 8, 0.1, **steps(2)),
]
"""Short and long texts, prompts of every kind, other guidance and other numbers of diffusion steps."""


@pytest.fixture(scope="module")
def server(serving: Serving) -> Iterator[Any]:
    """Both pipelines, as they are configured."""
    with serving({}, pipelines=BOTH) as server:
        yield server


@pytest.fixture(scope="module")
def split(server: Any, calling: Calling) -> Iterator[Any]:
    with calling(server.grpc_url) as caller:
        yield caller


def assert_same(ours: Any, wanted: Any, tolerance: float) -> None:
    assert (ours.errors, ours.finals) == (wanted.errors, wanted.finals) == ([], 1)
    assert ours.column("FINISH_REASON") == wanted.column("FINISH_REASON")
    assert [len(one.as_numpy("AUDIO")) for one in ours.responses] == [
        len(one.as_numpy("AUDIO")) for one in wanted.responses
    ]
    assert float(np.abs(ours.samples() - wanted.samples()).max()) <= tolerance


@pytest.mark.parametrize("inputs", MIXED, ids=range(len(MIXED)))
def test_it_says_what_the_pipeline_with_diffusion_inside_says(split: Any, inputs: Inputs) -> None:
    inline, ours = (split.ask(name, inputs) for name in BOTH)
    assert ours.samples().any()
    assert_same(ours, inline, 1e-5)


def test_streams_of_one_step_share_one_call_whatever_their_seeds_guidance_and_step_counts(
    server: Any, split: Any
) -> None:
    def counted() -> tuple[float, float, float]:
        return (
            metric(server, "triton_speech_batches_total", "voxcpm2_split_talker"),
            metric(server, "triton_speech_batch_streams_total", "voxcpm2_split_talker"),
            metric(server, "triton_speech_stage_requests_total", "voxcpm2_dit", outcome="ok"),
        )

    before = settled(counted)
    answers = split.ask_all(SPLIT, MIXED)
    assert [answer.errors for answer in answers] == [[]] * len(MIXED)
    assert [answer.column("FINISH_REASON")[-1] for answer in answers] == [b"length"] * len(MIXED)
    made, frames, calls = (now - then for now, then in zip(settled(counted), before, strict=True))
    assert made == calls
    assert frames > made, "no two streams shared a step"


def test_a_deterministic_pipeline_says_the_same_in_any_company(serving: Serving, calling: Calling) -> None:
    parameters = {name: {"deterministic": "true"} for name in ("voxcpm2_talker", "voxcpm2_split_talker", "voxcpm2_dit")}
    with serving(parameters, pipelines=BOTH) as server, calling(server.grpc_url) as caller:
        solos = [caller.ask(SPLIT, inputs) for inputs in MIXED]
        for ours, inputs in zip(solos, MIXED, strict=True):
            assert_same(ours, caller.ask(INLINE, inputs), 1e-5)
        for ours, solo in zip(caller.ask_all(SPLIT, MIXED), solos, strict=True):
            assert_same(ours, solo, 0.0)


def test_guidance_that_ends_early_ends_as_early_in_the_stage(serving: Serving, calling: Calling) -> None:
    parameters = {name: {"cfg_cutoff_ratio": 0.5} for name in ("voxcpm2_talker", "voxcpm2_dit")}
    with serving(parameters, pipelines=BOTH, stops_at_once=True) as server, calling(server.grpc_url) as caller:
        for inputs in (speech(seed=1), speech(seed=2, **steps(4))):
            inline, ours = (caller.ask(name, inputs) for name in BOTH)
            assert ours.column("FINISH_REASON")[-1] == b"stop"
            assert_same(ours, inline, 1e-5)


def test_mu_may_travel_as_bfloat16(serving: Serving, calling: Calling) -> None:
    """Half the bytes, for weights of that type; here they are fp32, so what is said is a little different."""

    def declare(models: Path) -> None:
        config = models / "model_repository" / "voxcpm2_dit" / "config.pbtxt"
        text = config.read_text(encoding="utf-8")
        config.write_text(text.replace('"MU" data_type: TYPE_FP32', '"MU" data_type: TYPE_BF16'), encoding="utf-8")

    parameters = {"voxcpm2_dit": {}, "voxcpm2_split_talker": {"diffusion_dtype": "bfloat16"}}
    with serving(parameters, pipelines=BOTH, edit=declare) as server, calling(server.grpc_url) as caller:
        first = speech(seconds=0.1)
        inline, ours = (caller.ask(name, first) for name in BOTH)
        assert ours.errors == []
        assert 0 < float(np.abs(ours.samples() - inline.samples()).max()) < 0.05


def test_a_caller_who_leaves_frees_the_place(server: Any, split: Any) -> None:
    def slots() -> float:
        return metric(server, "triton_speech_slots_in_use", "voxcpm2_split_talker")

    streams = [split.open(SPLIT, speech("word " * 45, seed, 60.0, **steps(100), **schedule(1))) for seed in range(3)]
    for stream in streams:
        assert not next(stream).error_message
    wait_until(lambda: slots() == 3)
    for stream in streams:
        stream.cancel()
    wait_until(lambda: slots() == 0)
    wait_until(lambda: metric(server, "triton_speech_slots_in_use", "voxcpm2_codec") == 0)
    assert split.ask(SPLIT, speech()).errors == []


def test_a_deadline_ends_a_stream(server: Any) -> None:
    fields = {"TEXT": "word " * 45, "INFERENCE_STEPS": 100, "parameters": {"timeout": 400_000}}
    request = urllib.request.Request(
        f"{server.http_url}/v2/models/{SPLIT}/generate_stream", json.dumps(fields).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = answer.read().decode()
    except urllib.error.HTTPError as error:
        told = error.read().decode()
    assert "the deadline of 0.4 s has passed" in told
    wait_until(lambda: metric(server, "triton_speech_slots_in_use", "voxcpm2_split_talker") == 0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_bad_input_is_refused_as_by_the_others(split: Any, row: Row) -> None:
    answer = split.ask(SPLIT, row.tensors())
    assert not answer.responses
    (text,) = answer.errors
    assert row.says in text
    assert text.startswith(f"{row.field}: ") or f"'{row.field}'" in text


def test_only_pipelines_that_are_named_are_served(server: Any, split: Any) -> None:
    names = set(server.control.states())
    assert {"voxcpm2_split", "voxcpm2_split_talker", "voxcpm2_dit", "voxcpm2", "voxcpm2_talker", "voices"} <= names
    assert "voxcpm2_pipeline" not in names


def test_a_diffusion_that_dies_in_mid_stream_ends_the_streams_and_is_healed(
    launching: Launching, calling: Calling, kill_stage: Kill
) -> None:
    options = ("--pipeline", SPLIT, "--probe-interval=0.5", "--probe-seconds=4", "--heal-attempts=100")
    slow = {**steps(100), **schedule(1)}
    with launching(*options) as launched, calling(launched.urls["grpc"]) as caller:
        server = launched.pid
        for heals in (1, 2):
            streams = [caller.open(SPLIT, speech("word " * 45, seed, 60.0, **slow)) for seed in range(3)]
            for stream in streams:
                assert not next(stream).error_message
            kill_stage(launched, "voxcpm2_dit")
            ends = [[message.error_message for message in stream if message.error_message] for stream in streams]
            assert all(len(errors) == 1 and "the diffusion stage has died" in errors[0] for errors in ends), ends
            launched.wait_report(lambda report, heals=heals: report["ready"] and report["heals"] >= heals)
            assert launched.report()["heals"] == heals, "more than the diffusion stage was healed"
            assert launched.pid == server
            wait_until(lambda: launched.metric("triton_speech_slots_in_use") == 0)
            assert caller.ask(SPLIT, speech()).errors == []
        (refused,) = caller.ask("voxcpm2_talker", {}, ("LATENTS",)).errors
        assert "unknown model" in refused


def test_input_files_for_perf_analyzer_are_written_for_its_models_too(server: Any, tmp_path: Path) -> None:
    written = {one.model for one in write_inputs(tmp_path, server.grpc_url, 0.2)}
    assert {SPLIT, "voxcpm2_split_talker", "voxcpm2_talker", "voxcpm2_codec", "voxcpm2_frontend"} <= written


def metric(server: Any, name: str, model: str, **labels: str) -> float:
    """The sum of a metric's series of a model with these labels."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    wanted = [f'{label}="{value}"' for label, value in {"model": model, **labels}.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if re.match(rf"{name}\{{", line) and all(mark in line for mark in wanted)
    )


def settled(read: Callable[[], Any]) -> Any:
    """A reading that does not change any more; the stages tell what they count a few times a second."""
    until = time.monotonic() + SETTLE_SECONDS
    last = read()
    while True:
        time.sleep(1.0)
        if (now := read()) == last:
            return now
        assert time.monotonic() < until, "what is counted does not come to rest"
        last = now


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SETTLE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
