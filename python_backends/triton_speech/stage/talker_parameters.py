"""What a talker stage may be told in its ``config.pbtxt``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from ..engine.api import EngineOptions
from ..engine.build import DIFFUSION_IS_CAPTURED, EngineChoice
from ..families.protocol import Diffuse
from ..parameters import DeviceParameters
from ..streaming.schedule import ChunkSchedule

MOST_STEPS = 100


class TalkerParameters(DeviceParameters):
    engine: Literal["torch", "vllm"] = "torch"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """``auto`` takes the checkpoint's on a GPU and float32 on the CPU."""
    max_length: int = Field(default=0, ge=0)
    """Positions that a stream may have, prompt and speech; 0 takes the checkpoint's."""
    max_num_seqs: int = Field(default=8, ge=1)
    max_waiting: int = Field(default=64, ge=0)
    prefill_chunk: int = Field(default=128, ge=1)
    prefill_budget: int = Field(default=256, ge=1)
    deterministic: bool = False
    max_inference_steps: int = Field(default=10, ge=2, le=MOST_STEPS)
    """Of the diffusion, in graphs, and of a diffusion stage, where it is 100 unless it is set. More is refused by vLLM
    and before that stage, and runs without graphs in torch."""
    graphs: bool = True
    """On a GPU: decode steps as captured CUDA graphs."""
    cfg_cutoff_ratio: float = Field(default=1.0, gt=0, le=1)
    """Share of the diffusion steps that are guided; below 1 the others run without their second branch, faster."""
    diffusion: Literal["inline", "stage"] = "inline"
    """``stage`` has the family's diffusion stage make the patches: one call for all streams of a step."""
    diffusion_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of ``MU`` on its way there; what that stage's configuration declares."""
    kv_cache_gib: float = Field(default=0.0, ge=0)
    """vLLM only: memory for keys and values; 0 takes what ``max_num_seqs`` streams of the greatest length need, and at
    most half of the GPU's memory that is free."""
    chunk_schedule: str = "1,2,4"
    pulse_ms: float = Field(default=50.0, ge=0)
    """In an ensemble: how long a stream may have nothing to send before it is asked whether its caller has gone."""
    lost_seconds: float = Field(default=5.0, gt=0)
    """In an ensemble: a stream ends when nothing that was sent came by again for so long: a later step has failed."""

    @field_validator("chunk_schedule")
    @classmethod
    def _readable(cls, text: str) -> str:
        ChunkSchedule.parse(text)
        return text

    @model_validator(mode="after")
    def _diffusion_fits(self) -> TalkerParameters:
        if self.diffusion == "stage" and self.engine == "vllm":
            raise ValueError(f"parameter diffusion is 'stage': {DIFFUSION_IS_CAPTURED}")
        if self.diffusion == "stage" and self.cfg_cutoff_ratio != 1:
            raise ValueError(
                f"parameter cfg_cutoff_ratio is {self.cfg_cutoff_ratio:g}: "
                "where diffusion is 'stage', it is that stage's own parameter"
            )
        return self

    def engine_choice(self, device: str, diffuse: Diffuse | None) -> EngineChoice:
        return EngineChoice(
            kind=self.engine,
            device=device,
            dtype=None if self.dtype == "auto" else self.dtype,
            length=self.max_length or None,
            most=self._most_steps,
            kv_cache_bytes=int(self.kv_cache_gib * 2**30),
            graphs=self.graphs,
            talker_options={} if self.cfg_cutoff_ratio == 1 else {"cfg_cutoff_ratio": self.cfg_cutoff_ratio},
            diffuse=diffuse,
        )

    @property
    def _most_steps(self) -> int:
        is_said = self.diffusion == "inline" or "max_inference_steps" in self.model_fields_set
        return self.max_inference_steps if is_said else MOST_STEPS

    @property
    def engine_options(self) -> EngineOptions:
        return EngineOptions(**{name: getattr(self, name) for name in EngineOptions.__dataclass_fields__})
