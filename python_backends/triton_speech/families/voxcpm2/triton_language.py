"""Whether kernels in the Triton language can run here."""

from __future__ import annotations

import functools
import importlib.util
import logging

import torch

log = logging.getLogger(__name__)

# A torch built for a GPU brings the Triton language along; one for the CPU does not.
IS_INSTALLED = importlib.util.find_spec("triton") is not None


@functools.lru_cache(maxsize=8)
def compiles(device: torch.device) -> bool:
    """Tries one kernel, for the language needs a C compiler on the host. What is missing is logged, once."""
    try:
        from . import kernels

        kernels.silu_mul(torch.zeros(1, 2, device=device))
    except Exception:
        log.warning("no kernels in the Triton language on %s; plain torch, which is slower, runs instead", device)
        log.warning("the reason:", exc_info=True)
        return False
    return True
