"""Training steps as a CUDA graph: small networks take longer to launch than to compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

PLAIN_STEPS = 3
"""Before the capture: what is built or chosen when it is first needed must not be within it."""

Compute = Callable[..., Mapping[str, Tensor]]


class Captured:
    """``compute``, which takes tensors of always the same shapes; from its fourth call on it is replayed from a graph.

    What it returns then is overwritten by the next call. Where it cannot be captured, which is told, it goes on plain.
    """

    def __init__(self, compute: Compute, name: str) -> None:
        self._compute, self._name = compute, name
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._given: list[Tensor] = []
        self._losses: Mapping[str, Tensor] = {}

    def __call__(self, *given: Tensor) -> Mapping[str, Tensor]:
        self._calls += 1
        if self._calls <= PLAIN_STEPS:
            return self._beside(given)
        if self._calls == PLAIN_STEPS + 1:
            self._capture(given)
        if self._graph is None:
            return self._compute(*given)
        for mine, new in zip(self._given, given, strict=True):
            mine.copy_(new)
        self._graph.replay()
        return self._losses

    def _beside(self, given: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
        """On a stream of its own, as a capture is."""
        here = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            losses = self._compute(*given)
        here.wait_stream(stream)
        return losses

    def _capture(self, given: tuple[Tensor, ...]) -> None:
        self._given = [one.clone() for one in given]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                self._losses = self._compute(*self._given)
        except RuntimeError as error:
            print(f"{self._name}: steps are not captured: {error}", flush=True)
            torch.cuda.synchronize()
            return
        self._graph = graph


def captured(compute: Compute, name: str, device: torch.device) -> Compute:
    """``compute`` itself where there is no GPU."""
    return Captured(compute, name) if device.type == "cuda" else compute
