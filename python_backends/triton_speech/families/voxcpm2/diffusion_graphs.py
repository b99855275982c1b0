"""The rounds of a batch as CUDA graphs, one for each of some numbers of rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from ..recorder import Recorder

log = logging.getLogger(__name__)

SIZES = (1, 2, 4, 8, 16, 32, 64)

Solve = Callable[[Mapping[str, Tensor]], Tensor]
"""Rows on the device, by the names of the stage's inputs -> patches (B, P, D) fp32."""


class SolveGraphs:
    """Batches take the smallest graph that holds them. Where none can be captured, which is logged, none fits.

    Args:
        solve: what is captured; each row's patch must depend on that row alone.
        rows: as many as the largest graph has, on the device, with values that can be solved. The graphs read them, and
            batches are written to them.
        record: makes the graphs.
    """

    def __init__(self, solve: Solve, rows: Mapping[str, Tensor], record: Recorder) -> None:
        self._rows = rows
        self._recorded: dict[int, tuple[Callable[[], None], Tensor]] = {}
        most = len(next(iter(rows.values())))
        try:
            # Largest first: the smaller graphs then fit into its memory.
            for size in sorted({min(size, most) for size in (*SIZES, most)}, reverse=True):
                self._recorded[size] = _record(solve, {name: column[:size] for name, column in rows.items()}, record)
        except Exception:
            log.exception("the diffusion's rounds could not be captured; their kernels are launched one by one")
            self._recorded = {}

    def run(self, rows: Mapping[str, Tensor]) -> Tensor | None:
        """Patches (B, P, D), which the next run overwrites; None where no graph holds so many rows."""
        count = len(next(iter(rows.values())))
        size = min((size for size in self._recorded if size >= count), default=None)
        if size is None:
            return None
        for name, column in self._rows.items():
            # What an earlier batch left in the other rows is solved again, for nobody.
            column[:count].copy_(rows[name], non_blocking=True)
        replay, made = self._recorded[size]
        replay()
        return made[:count]


def _record(solve: Solve, rows: Mapping[str, Tensor], record: Recorder) -> tuple[Callable[[], None], Tensor]:
    # Outside of the graph's memory, which the next graph takes.
    made = torch.zeros_like(solve(rows))
    return record(partial(_keep, made, solve, rows)), made


def _keep(made: Tensor, solve: Solve, rows: Mapping[str, Tensor]) -> None:
    made.copy_(solve(rows))
