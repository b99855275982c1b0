"""What the codec stage can be told in its ``config.pbtxt``."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator

from ..parameters import RuntimeParameters
from ..streaming.window import CoalescingWindow, WaitPolicy


class CodecParameters(RuntimeParameters):
    max_streams: int = Field(default=64, ge=1)
    idle_seconds: float = Field(default=60.0, gt=0)
    """A stream silent for longer may lose its slot to a new one."""
    max_chunk_frames: int = Field(default=128, ge=1)
    deterministic: bool = False
    """Each patch alone: no bit of a stream's samples depends on its company, nor on how it was cut into chunks."""
    max_batch: int = Field(default=64, ge=1)
    """Patches in one batch, and so the most streams in one."""
    min_batch: int = Field(default=1, ge=1)
    """Streams that are worth no further wait."""
    max_wait_ms: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """How long a batch of fewer may wait, from its first chunk's arrival."""
    wait_policy: WaitPolicy = "fixed"
    batches_in_flight: int = Field(default=1, ge=1, le=2)
    """Batches on the device at once: 2 for throughput, 1 for the earliest first chunk."""
    graphs: bool = True
    """On a GPU: decode through captured CUDA graphs."""
    max_trailing_silence: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Seconds of silence that a stream may end with; what is longer is not sent."""
    matmul: Literal["fp32", "tf32"] = "fp32"
    """On a GPU: how fp32 matrices are multiplied; tf32 keeps 10 bits of the factors' fractions."""

    @field_validator("min_batch")
    @classmethod
    def _reachable(cls, min_batch: int, info: ValidationInfo) -> int:
        if info.data.get("deterministic") and min_batch > 1:
            raise ValueError("must be 1 where deterministic is true")
        max_batch = info.data.get("max_batch", min_batch)
        if min_batch > max_batch:
            raise ValueError(f"must be 1 to max_batch ({max_batch})")
        return min_batch

    @property
    def window(self) -> CoalescingWindow:
        max_batch = 1 if self.deterministic else self.max_batch
        return CoalescingWindow(max_batch, self.min_batch, self.max_wait_ms, self.wait_policy)

    def set_matmul_precision(self, device: str) -> None:
        """For this process, which is the stage's own.

        Raises:
            ValueError: tf32 is asked for where there is no GPU.
        """
        if self.matmul == "tf32" and not device.startswith("cuda"):
            raise ValueError("parameter matmul is 'tf32', which needs a GPU; on the CPU it must be 'fp32'")
        torch.set_float32_matmul_precision("high" if self.matmul == "tf32" else "highest")
