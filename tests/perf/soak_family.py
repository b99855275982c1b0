"""What the soak asks of a family: its models, how it is drawn, and what stands for a description of a voice."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from triton_speech.families.registry import load_family

Options = dict[str, Any]


class SoakFamily(NamedTuple):
    name: str
    drawn: Callable[[random.Random], Options]
    """Sampling fields of one request, by the names of the client's options."""
    described: Options
    """Of the requests that describe what they want."""
    slow: Options
    """All sampling fields, for the talker itself."""

    @property
    def pipelines(self) -> tuple[str, str]:
        return self.name, f"{self.name}_pipeline"

    @property
    def stages(self) -> tuple[str, ...]:
        """Models that may be killed."""
        parts = ("frontend", "reference", "talker", "codec")
        return (*(f"{self.name}_{part}" for part in parts), self.name, "voices")

    @property
    def tokens(self) -> list[int]:
        """Of a short prompt that needs no voice."""
        return list(load_family(self.name).WARM_UP_TOKENS)

    def write_tiny_checkpoint(self, folder: Path) -> Path:
        tiny = import_module(f"triton_speech.families.{self.name}.tiny")
        return Path(tiny.write_tiny_checkpoint(folder / f"{self.name}_tiny"))

    def patch_shape(self, checkpoint: Path) -> tuple[int, int]:
        """Of what the codec decodes."""
        codec = load_family(self.name).load_codec(checkpoint, slots=2)
        rows, width = codec.patch_shape
        return int(rows), int(width)


def _guided(source: random.Random) -> Options:
    options: Options = {}
    if source.random() < 0.3:
        options["cfg_value"] = round(source.uniform(1, 4), 2)
    if source.random() < 0.2:
        options["inference_steps"] = source.choice((4, 6))
    return options


def _sampled(source: random.Random) -> Options:
    options: Options = {}
    if source.random() < 0.3:
        options["temperature"] = source.choice((0.0, 0.5, 1.5))
    if source.random() < 0.3:
        options["top_p"] = round(source.uniform(0.3, 1), 2)
    if source.random() < 0.2:
        options["codes_top_k"] = source.choice((0, 5, 64))
    return options


FAMILIES: Mapping[str, SoakFamily] = {
    "voxcpm2": SoakFamily(
        "voxcpm2", _guided, {"instruction": "A calm old man."}, {"cfg_value": 2.0, "inference_steps": 50}
    ),
    "qwen3_tts": SoakFamily(
        "qwen3_tts",
        _sampled,
        {"language": "german"},
        {
            **{"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05},
            **{"codes_temperature": 0.9, "codes_top_k": 50, "codes_top_p": 1.0},
        },
    ),
}
chosen = FAMILIES["voxcpm2"]


def choose(name: str) -> None:
    """The family of this run, before anything of it begins."""
    global chosen
    chosen = FAMILIES[name]
