"""The fields of a request that this family adds, and what a stream is drawn with. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...request import NumberField

CFG_VALUE = NumberField("CFG_VALUE", 0.0, 10.0, 1.3)
INFERENCE_STEPS = NumberField("INFERENCE_STEPS", 2, 100, 10, integer=True)
FIELDS = (CFG_VALUE, INFERENCE_STEPS)
SAMPLING_INPUTS = tuple(field.name for field in FIELDS)


@dataclass(frozen=True)
class Sampling:
    """How a stream's frames are drawn. ``seed`` is taken modulo 2**64."""

    seed: int
    cfg_value: float = CFG_VALUE.default
    inference_steps: int = int(INFERENCE_STEPS.default)

    def __post_init__(self) -> None:
        """Raises SpeechError where a value would stop or poison the batch that the stream runs in."""
        for field in FIELDS:
            field.check(getattr(self, field.name.lower()))

    @property
    def batch_key(self) -> int:
        """Diffusion steps: a batch runs as many as its most demanding stream."""
        return self.inference_steps


def make_sampling(seed: int, values: Mapping[str, Any]) -> Sampling:
    """Reads the sampling fields that the frontend sends along; what is absent takes the family's default."""
    return Sampling(
        seed=seed,
        cfg_value=float(values.get(CFG_VALUE.name, CFG_VALUE.default)),
        inference_steps=int(values.get(INFERENCE_STEPS.name, INFERENCE_STEPS.default)),
    )
