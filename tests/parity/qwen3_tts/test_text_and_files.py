"""Tokens are upstream's, and so is every tensor of the checkpoints that it was given."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triton_speech.families.qwen3_tts.config import Qwen3TTSConfig
from triton_speech.families.qwen3_tts.tokenizer import Tokenizer

NOTES = json.loads((Path(__file__).parent / "data/goldens.json").read_text(encoding="utf-8"))
Checkpoint = Callable[[str], Path]


@pytest.mark.parametrize("text", NOTES["sentences"])
def test_tokens_are_upstreams(checkpoint: Checkpoint, text: str) -> None:
    folder = checkpoint("base")
    tokenizer = Tokenizer.from_checkpoint(folder, Qwen3TTSConfig.from_checkpoint(folder))
    assert tokenizer.encode(text) == NOTES["sentences"][text]


@pytest.mark.parametrize("name", NOTES["checkpoints"])
def test_the_checkpoints_that_upstream_loaded_whole_are_those_written_today(checkpoint: Checkpoint, name: str) -> None:
    """The script that made the golden tensors ends if a tensor is missing, left over or changed by loading."""
    names = ("model.safetensors", "speech_tokenizer/model.safetensors")
    files = [(checkpoint(name) / file).read_bytes() for file in names]
    assert hashlib.sha256(b"".join(files)).hexdigest() == NOTES["checkpoints"][name]


def test_golden_tensors_are_of_the_version_that_is_named(goldens: Any) -> None:
    assert goldens.notes["versions"]["qwen-tts"] == "0.1.1"
