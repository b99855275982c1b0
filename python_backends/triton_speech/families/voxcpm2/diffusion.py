"""The local DiT alone: what the talker hands over in, patches out. Noise is made here, from seed and frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from ..graph_use import GraphUse
from ..recorder import Recorder
from .diffusion_graphs import SolveGraphs
from .frontend import CFG_VALUE, INFERENCE_STEPS
from .noise import gaussian

_STEPS = int(INFERENCE_STEPS.default)


class Solver(Protocol):
    """``locdit.FlowMatching``, or what does the same elsewhere."""

    cutoff_ratio: float

    def solve(self, noise: Tensor, mu: Tensor, cond: Tensor, cfg_value: Tensor, steps: Tensor, most: int) -> Tensor: ...


class VoxCPM2Diffusion:
    """Solves rows of any streams. The talker does the same with its own (``SlotTalker.emit``).

    Args:
        solver: the local DiT.
        patch_shape: (P, D).
        mu_size: values of a row's MU.
        device: where the solver computes.
        dtype: in what it takes noise, MU and COND.
    """

    def __init__(
        self, solver: Solver, patch_shape: tuple[int, int], mu_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.patch_shape = patch_shape
        self.mu_size = mu_size
        self._solver = solver
        self._device, self._dtype = device, dtype
        self._graphs: SolveGraphs | None = None
        self.graph_use = GraphUse()

    @torch.inference_mode()
    def capture(self, most: int, record: Recorder) -> None:
        """From now on batches of up to ``most`` rows, and of no more steps than is usual, run as graphs."""
        rows = {name: column.to(self._device, copy=True) for name, column in self._blank(most).items()}
        self._graphs = SolveGraphs(lambda given: self._solved(given, _STEPS), rows, record)

    def warm_up(self) -> None:
        """Solves once, so that the first caller does not pay for torch's start."""
        self.solve(self._blank(1), _STEPS)

    def _blank(self, count: int) -> dict[str, Tensor]:
        """Rows that can be solved."""
        one = torch.ones(count, 1, dtype=torch.int64)
        floats = {"MU": torch.zeros(count, self.mu_size), "COND": torch.zeros(count, *self.patch_shape)}
        return {**floats, "SEED": one, "POSITION": one, CFG_VALUE.name: one.float(), INFERENCE_STEPS.name: _STEPS * one}

    @torch.inference_mode()
    def solve(self, rows: Mapping[str, Tensor], batch_key: int) -> Tensor:
        """Patches (B, P, D) fp32.

        Args:
            rows: MU (B, 2h) and COND (B, P, D), floats; SEED (B, 1) and POSITION (B, 1) int64, the stream's seed and
                the index of its frame; CFG_VALUE (B, 1) fp32; INFERENCE_STEPS (B, 1) int64. On the CPU.
            batch_key: diffusion steps of all rows.
        """
        if self._graphs is not None:
            made = self._graphs.run(rows) if batch_key <= _STEPS else None
            self.graph_use.count(replayed=made is not None)
            if made is not None:
                return made.cpu()
        given = {name: rows[name].to(self._device, non_blocking=True) for name in rows}
        return self._solved(given, batch_key).cpu()

    def _solved(self, given: Mapping[str, Tensor], batch_key: int) -> Tensor:
        """The same on the device."""
        lanes = self.patch_shape[0] * self.patch_shape[1]
        noise = gaussian(given["SEED"].squeeze(1), given["POSITION"].squeeze(1), lanes)
        return self._solver.solve(
            noise.view(-1, *self.patch_shape).to(self._dtype),
            given["MU"].to(self._dtype),
            given["COND"].to(self._dtype),
            given[CFG_VALUE.name].squeeze(1),
            given[INFERENCE_STEPS.name].squeeze(1),
            batch_key,
        ).float()
