"""Kernels that start while the one before them still runs (programmatic dependent launch of Hopper and later).

Such a kernel may do what no other kernel's results are needed for, and calls ``await_input`` before it reads what
another wrote, and before it writes. Then all kernels before it have ended, for each of them has waited in its turn.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as tl_cuda

EARLY_START = 1
"""When the next kernel may start: 0 after this one, 1 once this one has its input, 2 at once."""


def launch_options(device: torch.device) -> dict[str, int | bool]:
    """Keyword arguments for launching a kernel that calls ``await_input(EARLY)``."""
    if EARLY_START and _is_known(device):
        return {"EARLY": EARLY_START, "launch_pdl": True}
    return {"EARLY": 0}


@functools.lru_cache(maxsize=8)
def _is_known(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


@triton.jit
def await_input(EARLY: tl.constexpr):
    """Waits for the kernels before this one; the next one may then start, and comes as far as its own wait."""
    if EARLY == 2:
        tl_cuda.gdc_launch_dependents()
    if EARLY:
        tl_cuda.gdc_wait()
    if EARLY == 1:
        tl_cuda.gdc_launch_dependents()
