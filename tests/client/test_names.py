"""T10: what the client asks for is what the model repository offers."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from triton_speech_client import SpeechClient
from triton_speech_client.cli.say import add_arguments
from triton_speech_client.request import build_tensors, requested_outputs

ENSEMBLES = Path(__file__).resolve().parents[2] / "ensembles"
PIPELINES = ["voxcpm2", "voxcpm2_pipeline"]
ALL_INPUTS = build_tensors(
    "x",
    voice="v",
    reference=b"r",
    prompt_audio=b"p",
    prompt_text="t",
    instruction="i",
    language="en",
    seed=1,
    cfg_value=2.0,
    inference_steps=10,
    max_seconds=1.0,
    chunk_schedule=[1],
)


def declared(pipeline: str) -> set[str]:
    """The names that a pipeline's config gives to tensors."""
    config = (ENSEMBLES / pipeline / "config.pbtxt").read_text(encoding="utf-8")
    return set(re.findall(r'name:\s*"([A-Z0-9_]+)"', config))


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_input_and_output_of_the_client_is_declared_by_the_pipeline(pipeline: str) -> None:
    asked_for = {*ALL_INPUTS, *requested_outputs(pcm16=False), *requested_outputs(pcm16=True)}
    assert asked_for <= declared(pipeline)


def test_the_default_pipeline_is_one_of_them() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with SpeechClient() as client:
        assert client.pipeline == parser.parse_args(["x"]).pipeline == PIPELINES[0]
    assert (ENSEMBLES / client.pipeline / "config.pbtxt").is_file()
