"""T10: what the client asks for is what the model repository offers."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from triton_speech.families.registry import load_family
from triton_speech_client import SpeechClient
from triton_speech_client.cli.say import add_arguments
from triton_speech_client.gateway.body import VoiceOptions
from triton_speech_client.request import SamplingOptions, build_tensors, requested_outputs

ENSEMBLES = Path(__file__).resolve().parents[2] / "ensembles"
PIPELINES = ["voxcpm2", "voxcpm2_pipeline"]
FAMILIES = ("voxcpm2", "qwen3_tts", "vibevoice")
SHARED: dict[str, Any] = {
    "voice": "v",
    "reference": b"r",
    "prompt_audio": b"p",
    "prompt_text": "t",
    "instruction": "i",
    "language": "en",
    "seed": 1,
    "max_seconds": 1.0,
    "chunk_schedule": [1],
    "priority": 1,
}


def declared(pipeline: str) -> set[str]:
    """The names that a pipeline's config gives to tensors."""
    config = (ENSEMBLES / pipeline / "config.pbtxt").read_text(encoding="utf-8")
    return set(re.findall(r'name:\s*"([A-Z0-9_]+)"', config))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["", "_pipeline"])
def test_every_input_and_output_of_the_client_is_declared_by_the_pipeline(family: str, kind: str) -> None:
    asked_for = {*build_tensors("x", **SHARED), *requested_outputs(pcm16=False), *requested_outputs(pcm16=True)}
    assert asked_for <= declared(family + kind)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_family_is_drawn_with_can_be_sent(family: str) -> None:
    names = set(load_family(family).SAMPLING_INPUTS)
    assert names <= {name.upper() for name in SamplingOptions.__annotations__}
    assert names <= declared(family)
    assert names <= {name.upper() for name in VoiceOptions.model_fields}


def test_the_default_pipeline_is_one_of_them() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with SpeechClient() as client:
        assert client.pipeline == parser.parse_args(["x"]).pipeline == PIPELINES[0]
    assert (ENSEMBLES / client.pipeline / "config.pbtxt").is_file()
