"""The fields of a request that this family adds, and what a stream is drawn with. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...request import NumberField

MOST_K = 4096
TEMPERATURE = NumberField("TEMPERATURE", 0.0, 2.0, 0.9)
TOP_K = NumberField("TOP_K", 0, MOST_K, 50, integer=True)
TOP_P = NumberField("TOP_P", 0.01, 1.0, 1.0)
REPETITION_PENALTY = NumberField("REPETITION_PENALTY", 1.0, 2.0, 1.05)
CODES_TEMPERATURE = NumberField("CODES_TEMPERATURE", 0.0, 2.0, 0.9)
CODES_TOP_K = NumberField("CODES_TOP_K", 0, MOST_K, 50, integer=True)
CODES_TOP_P = NumberField("CODES_TOP_P", 0.01, 1.0, 1.0)
FIELDS = (TEMPERATURE, TOP_K, TOP_P, REPETITION_PENALTY, CODES_TEMPERATURE, CODES_TOP_K, CODES_TOP_P)
SAMPLING_INPUTS = tuple(field.name for field in FIELDS)
"""The first four are for a frame's first code, the others for the rest of the frame."""


@dataclass(frozen=True)
class Sampling:
    """How a stream's codes are drawn. ``seed`` is taken modulo 2**64; a temperature of 0 takes the likeliest code."""

    seed: int
    temperature: float = TEMPERATURE.default
    top_k: int = int(TOP_K.default)
    top_p: float = TOP_P.default
    repetition_penalty: float = REPETITION_PENALTY.default
    codes_temperature: float = CODES_TEMPERATURE.default
    codes_top_k: int = int(CODES_TOP_K.default)
    codes_top_p: float = CODES_TOP_P.default

    def __post_init__(self) -> None:
        """Raises SpeechError where a value would stop or poison the batch that the stream runs in."""
        for field in FIELDS:
            field.check(getattr(self, field.name.lower()))

    @property
    def batch_key(self) -> int:
        """All streams share a batch, whatever they are drawn with."""
        return 0


def make_sampling(seed: int, values: Mapping[str, Any]) -> Sampling:
    """Reads the sampling fields that the frontend sends along; what is absent takes the family's default."""
    given: dict[str, Any] = {}
    for field in FIELDS:
        if field.name in values:
            value = float(values[field.name])
            given[field.name.lower()] = int(value) if field.integer else value
    return Sampling(seed=seed, **given)
