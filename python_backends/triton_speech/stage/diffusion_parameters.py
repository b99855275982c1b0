"""What the diffusion stage can be told in its ``config.pbtxt``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ..parameters import RuntimeParameters


class DiffusionParameters(RuntimeParameters):
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """``auto`` takes the checkpoint's on a GPU and float32 on the CPU."""
    graphs: bool = True
    """On a GPU, with runtime ``torch``: solve through captured CUDA graphs."""
    max_inference_steps: int = Field(default=100, ge=2, le=100)
    cfg_cutoff_ratio: float = Field(default=1.0, gt=0, le=1)
    """Share of the diffusion steps that are guided; below 1 the others run without their second branch, faster."""
    deterministic: bool = False
    """Solve batches of one shape only, so that a seed gives the same bytes in any company."""
    deterministic_rows: int = Field(default=8, ge=1)
    """Rows of that shape: smaller batches are padded, larger ones cut. Best the talker's ``max_num_seqs``."""

    @model_validator(mode="after")
    def _graphs_are_fp32(self) -> DiffusionParameters:
        if self.runtime == "onnxruntime" and self.dtype not in ("auto", "float32"):
            raise ValueError(
                f"parameter dtype is {self.dtype!r}; with runtime 'onnxruntime' it must be 'auto' or 'float32', "
                "in which the graphs compute"
            )
        return self
