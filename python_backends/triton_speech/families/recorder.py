"""What makes of work on the device something that does it again, at once."""

from __future__ import annotations

from collections.abc import Callable

import torch

Recorder = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes work that has run once before, and does it again whenever it is called."""


def cuda_recorder(device: torch.device) -> Recorder:
    """Captures work as CUDA graphs that share one pool of memory; they must not run at the same time."""
    pool = torch.cuda.graph_pool_handle()

    def record(work: Callable[[], None]) -> Callable[[], None]:
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            work()
        return graph.replay

    return record
