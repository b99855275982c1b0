"""The torch engine's decode step as CUDA graphs: its thousands of small kernels are launched as one.

A graph has one shape: so many rows, and keys up to one position. A batch takes the smallest that holds it; the rows
that are left over work in the scratch slot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..families.graph_use import GraphUse
from ..families.recorder import Recorder, cuda_recorder

log = logging.getLogger(__name__)

Shape = tuple[int, int]
"""Rows, and the positions that they may reach."""
Step = Callable[[Tensor, Tensor, int], Tensor]
"""(slots (B,) int64, positions (B,) int64, longest) -> what is wanted of the step, (B, ...)."""

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
SHORTEST = 512
"""Positions of the shortest graphs; each longer kind has twice as many."""


def graph_shapes(max_rows: int, length: int) -> list[Shape]:
    """Shapes that hold each batch of up to ``max_rows`` rows, the largest first: the others then fit its memory."""
    rows = sorted({min(size, max_rows) for size in (*SIZES, max_rows)}, reverse=True)
    reaches, reach = [], SHORTEST
    while reach < length:
        reaches.append(reach)
        reach *= 2
    return [(size, reach) for reach in (length, *reversed(reaches)) for size in rows]


@dataclass(frozen=True)
class _Recorded:
    replay: Callable[[], None]
    made: Tensor


class StepGraphs:
    """Steps of batches whose key is at most ``most``. Where they cannot be captured, which is logged, no graph fits.

    Args:
        step: what is captured. It must find its state at the same addresses each time and ask nothing of the host, and
            row 0 at position 0 must be scratch.
        shapes: of the graphs.
        most: the key that they are captured with.
        device: of the rows.
        record: by default as a CUDA graph.
    """

    def __init__(
        self, step: Step, shapes: Sequence[Shape], most: int, device: torch.device, record: Recorder | None = None
    ) -> None:
        self.use = GraphUse()
        self.most = most
        self._columns = torch.zeros(2, max(rows for rows, _ in shapes), dtype=torch.int64, device=device)
        record = record or cuda_recorder(device)
        try:
            self._recorded = {shape: self._record(step, shape, record) for shape in shapes}
        except Exception:
            log.exception("the talker's steps could not be captured; their kernels are launched one by one")
            self._recorded = {}

    def run(self, rows: Sequence[tuple[int, int]], longest: int, key: int) -> Tensor | None:
        """What ``step`` made, (B, ...), for rows (slot, position); None where no graph fits, which is counted.

        The next run overwrites it.

        Args:
            longest: at least the largest position.
            key: of the batch.
        """
        shape = self.fitting(len(rows), longest) if key <= self.most else None
        self.use.count(replayed=shape is not None)
        if shape is None:
            return None
        filled = [*rows, *[(0, 0)] * (shape[0] - len(rows))]
        self._columns[:, : shape[0]].copy_(torch.tensor(filled, dtype=torch.int64).T, non_blocking=True)
        recorded = self._recorded[shape]
        recorded.replay()
        return recorded.made[: len(rows)]

    def fitting(self, rows: int, longest: int) -> Shape | None:
        """The smallest shape that holds a batch, fewest rows first; None where none does."""
        return min((shape for shape in self._recorded if shape[0] >= rows and shape[1] > longest), default=None)

    def _record(self, step: Step, shape: Shape, record: Recorder) -> _Recorded:
        rows, reach = shape
        slots, positions = self._columns[0, :rows], self._columns[1, :rows]
        # Outside of the graph's memory, which the next graph takes.
        made = torch.zeros_like(step(slots, positions, reach - 1))
        return _Recorded(record(lambda: _keep(made, step(slots, positions, reach - 1))), made)


def _keep(kept: Tensor, made: Tensor) -> None:
    kept.copy_(made)
