"""The families' counter-based noise, by a kernel where there is one."""

from __future__ import annotations

from torch import Tensor

from .. import noise
from .ops import tail_kernels


def gaussian(seed: Tensor, frame: Tensor, lanes: int) -> Tensor:
    """``families.noise.gaussian``: seed (B,) and frame (B,) int64 -> (B, lanes) fp32."""
    if (kernels := tail_kernels(seed)) is not None:
        return kernels.gaussian(seed, frame, lanes)
    return noise.gaussian(seed, frame, lanes)
