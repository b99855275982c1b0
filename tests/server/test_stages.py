"""Stages called on their own, with what no pipeline would send them: refused by name, and nobody else is harmed."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest

TALKER_OUTPUTS = ("LATENTS", "CHUNK_INDEX", "FINISH_REASON")
CODEC_OUTPUTS = ("AUDIO", "SAMPLE_RATE")
GOOD = {"TEXT": "Hello.", "SEED": np.array([1], np.uint64)}


def talker_inputs(**changes: Any) -> dict[str, Any]:
    inputs = {
        "TOKENS": np.arange(10, 20, dtype=np.int32),
        "SEED": np.array([1], np.uint64),
        "MAX_FRAMES": np.array([4], np.int32),
        "CFG_VALUE": np.array([2.0], np.float32),
        "INFERENCE_STEPS": np.array([4], np.int32),
    }
    return {name: value for name, value in {**inputs, **changes}.items() if value is not None}


def codec_inputs(**changes: Any) -> dict[str, Any]:
    inputs = {
        "STREAM_ID": uuid.uuid4().hex,
        "LATENTS": np.zeros((1, 2, 8), np.float32),
        "SKIP_FRAMES": np.array([0], np.int32),
        "CHUNK_INDEX": np.array([0], np.int32),
        "FINISH_REASON": "stop",
    }
    return {name: value for name, value in {**inputs, **changes}.items() if value is not None}


BAD_FOR_THE_TALKER = [
    ("CFG_VALUE", np.array([np.nan], np.float32)),
    ("CFG_VALUE", np.array([np.inf], np.float32)),
    ("CFG_VALUE", np.array([-1.0], np.float32)),
    ("CFG_VALUE", None),
    ("INFERENCE_STEPS", np.array([1_000_000], np.int32)),
    ("INFERENCE_STEPS", np.array([1], np.int32)),
    ("INFERENCE_STEPS", None),
    ("MAX_FRAMES", np.array([0], np.int32)),
    ("MAX_FRAMES", np.array([-5], np.int32)),
    ("MAX_FRAMES", None),
    ("SEED", None),
    ("TOKENS", None),
    ("TOKENS", np.zeros(0, np.int32)),
    ("TOKENS", np.array([-1], np.int32)),
    ("TOKENS", np.array([10_000_000], np.int32)),
    ("CHUNK_SCHEDULE", np.array([0], np.int32)),
    ("CHUNK_SCHEDULE", np.array([10**9], np.int32)),
    ("CHUNK_SCHEDULE", np.ones(100_000, np.int32)),
    ("REFERENCE_LATENTS", np.zeros((3, 2, 9), np.float32)),
    ("PROMPT_LATENTS", np.full((3, 2, 8), np.nan, np.float32)),
    ("CONTROL", "dance"),
]


@pytest.mark.parametrize(("field", "value"), BAD_FOR_THE_TALKER)
def test_the_talker_refuses_it_by_name(caller, field, value):
    answer = caller.ask("voxcpm2_talker", talker_inputs(**{field: value}), TALKER_OUTPUTS)
    assert len(answer.errors) == 1
    assert answer.errors[0].startswith(f"{field}: ")
    assert not answer.responses


BAD_FOR_THE_CODEC = [
    ("LATENTS", np.zeros((1, 3, 8), np.float32)),
    ("LATENTS", np.zeros((1000, 2, 8), np.float32)),
    ("LATENTS", None),
    ("SKIP_FRAMES", np.array([5], np.int32)),
    ("SKIP_FRAMES", np.array([-1], np.int32)),
    ("STREAM_ID", None),
    ("CONTROL", "dance"),
]


@pytest.mark.parametrize(("field", "value"), BAD_FOR_THE_CODEC)
def test_the_codec_refuses_it_by_name(caller, field, value):
    answer = caller.ask("voxcpm2_codec", codec_inputs(**{field: value}), CODEC_OUTPUTS)
    assert len(answer.errors) == 1
    assert field in answer.errors[0]


def test_a_stream_that_the_codec_has_not_seen_must_begin_with_chunk_0(caller):
    answer = caller.ask("voxcpm2_codec", codec_inputs(CHUNK_INDEX=np.array([3], np.int32)), CODEC_OUTPUTS)
    assert answer.errors[0].startswith("STREAM_ID: is not known")


def test_a_chunk_out_of_order_ends_its_stream(caller):
    stream = uuid.uuid4().hex
    begin = codec_inputs(STREAM_ID=stream, FINISH_REASON="")
    assert not caller.ask("voxcpm2_codec", begin, CODEC_OUTPUTS).errors
    jump = codec_inputs(STREAM_ID=stream, CHUNK_INDEX=np.array([2], np.int32))
    assert caller.ask("voxcpm2_codec", jump, CODEC_OUTPUTS).errors[0].startswith("CHUNK_INDEX: is 2, chunk 1 was due")


def test_nonsense_to_the_stages_changes_no_later_stream(caller):
    """NaN guidance once stayed in a slot's cache and made every later stream of that slot fail."""
    before = caller.ask("voxcpm2", GOOD).samples()
    for field, value in BAD_FOR_THE_TALKER:
        caller.ask("voxcpm2_talker", talker_inputs(**{field: value}), TALKER_OUTPUTS)
    after = caller.ask("voxcpm2", GOOD)
    assert not after.errors
    assert np.allclose(after.samples(), before, atol=1e-5)
