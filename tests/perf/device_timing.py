"""What benchmarks of parts share: the device, the time of a run on it, and the floor that its memory sets."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

BANDWIDTH = 4.3e12
"""Bytes a second that an H200 copies to itself, measured."""
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
_UNTIMED = 3


def bytes_of(module: nn.Module, without: tuple[str, ...] = ()) -> int:
    """Of the weights whose names hold none of ``without``."""
    named = module.named_parameters()
    return sum(t.numel() * t.element_size() for name, t in named if not any(part in name for part in without))


def milliseconds(run: Callable[[], object], rounds: int) -> float:
    """The median of so many runs, after a few untimed ones."""
    times = []
    for _ in range(rounds + _UNTIMED):
        start = time.perf_counter()
        run()
        if ON_GPU:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return median(times[_UNTIMED:])


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """``run`` as a CUDA graph; itself where there is no GPU."""
    if not ON_GPU:
        return run
    # What is built at the first run must not be built within a capture.
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
