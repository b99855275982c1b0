"""CUDA graphs of the tail alone: for steps in which prompts run beside decode rows.

vLLM captures steps of decode rows only. A step with a prompt in it runs eagerly, and its tail (diffusion, local
encoder, stop head) is a thousand small kernels whose launching costs ten times what they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...families.protocol import TalkerModel
from ..slots import SCRATCH_SLOT


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    slots: Tensor
    positions: Tensor
    state: Tensor
    residual: Tensor
    stops: Tensor


class TailGraphs:
    """Replays ``talker.emit`` for batches up to the largest of ``sizes``; each batch is padded to the next size."""

    def __init__(self, talker: TalkerModel, batch_key: Any, sizes: Sequence[int], width: int) -> None:
        self._talker = talker
        self._batch_key = batch_key
        pool = torch.cuda.graph_pool_handle()
        # Largest first: the smaller graphs then fit into the memory of the first.
        self._graphs = {size: self._capture(size, width, pool) for size in sorted(sizes, reverse=True)}
        self._sizes = sorted(sizes)

    def emit(self, slots: Tensor, positions: Tensor, state: Tensor, residual: Tensor) -> Tensor | None:
        """As ``talker.emit``: the stops (B,), or None where no graph is large enough."""
        count = len(slots)
        size = next((size for size in self._sizes if size >= count), None)
        if size is None:
            return None
        one = self._graphs[size]
        one.slots.fill_(SCRATCH_SLOT)
        one.positions.zero_()
        for static, given in (
            (one.slots, slots),
            (one.positions, positions),
            (one.state, state),
            (one.residual, residual),
        ):
            static[:count].copy_(given)
        one.graph.replay()
        return one.stops[:count]

    def _capture(self, size: int, width: int, pool: Any) -> _Graph:
        talker = self._talker
        slots = torch.full((size,), SCRATCH_SLOT, dtype=torch.int64, device=talker.device)
        positions = torch.zeros_like(slots)
        state = torch.zeros(size, width, dtype=talker.dtype, device=talker.device)
        residual = torch.zeros_like(state)
        talker.emit(slots, positions, state, residual, self._batch_key)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            _, stops = talker.emit(slots, positions, state, residual, self._batch_key)
        return _Graph(graph, slots, positions, state, residual, stops)
