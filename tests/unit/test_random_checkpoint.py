"""Checkpoints of published sizes, for benchmarks: a small size stands for a published one."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from tests.perf.random_checkpoint import write_random_checkpoint

from triton_speech.families.registry import family_names, load_family
from triton_speech.request import SpeechRequest

LAYERS = {
    "voxcpm2": ("lm_config", "num_hidden_layers"),
    "qwen3_tts": ("talker_config", "num_hidden_layers"),
    "vibevoice": ("decoder_config", "num_hidden_layers"),
}
TOKENIZER = Path("speech_tokenizer", "config.json")


def publish(family: str, tiny: Path, target: Path) -> None:
    """A configuration as published ones are: another size, fields nobody knows, ids of another vocabulary."""
    config = json.loads((tiny / "config.json").read_text(encoding="utf-8"))
    section, field = LAYERS[family]
    config[section] |= {field: 3, "nobody_knows": 1}
    config |= {"transformers_version": "4.57.3"}
    for name in config:
        if name.endswith("_token_id"):
            config[name] = 10**6
    target.mkdir()
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if (tiny / TOKENIZER).is_file():
        (target / TOKENIZER).parent.mkdir()
        (target / TOKENIZER).write_bytes((tiny / TOKENIZER).read_bytes())


@pytest.mark.parametrize("family", family_names())
def test_it_has_the_published_size_and_can_be_spoken_with(family: str, tmp_path: Path) -> None:
    tiny = importlib.import_module(f"triton_speech.families.{family}.tiny").write_tiny_checkpoint(tmp_path / "tiny")
    publish(family, tiny, tmp_path / "published")
    made = write_random_checkpoint(family, tmp_path / "published", tmp_path / "made")
    section, field = LAYERS[family]
    assert json.loads((made / "config.json").read_text(encoding="utf-8"))[section][field] == 3
    package = load_family(family)
    frontend = package.load_frontend(made, package.FrontendParameters())
    assert frontend.prepare(SpeechRequest("Good morning.")).tokens
    assert package.load_talker(made, slots=2, device="cpu", dtype=None, length=64)
