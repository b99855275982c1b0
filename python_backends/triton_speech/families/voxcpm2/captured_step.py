"""The decoder's step as a CUDA graph: its hundred small kernels are launched as one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], Tensor]


class CapturedStep:
    """``step(latents, rows)`` for one shape; the same results, bit for bit.

    Args:
        step: changes ``rows`` in place and returns audio.
        latents: (B, D, T) of the shape that will be given; its values do not matter.
        rows: (B, floats) likewise.
    """

    def __init__(self, step: Step, latents: Tensor, rows: Tensor) -> None:
        self._latents, self._rows = torch.zeros_like(latents), torch.zeros_like(rows)
        step(self._latents, self._rows)
        torch.cuda.synchronize(latents.device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._audio = step(self._latents, self._rows)

    def __call__(self, latents: Tensor, rows: Tensor) -> Tensor:
        """As the step itself. The audio is overwritten by the next call: copy it."""
        self._latents.copy_(latents)
        self._rows.copy_(rows)
        self._graph.replay()
        rows.copy_(self._rows)
        return self._audio
