"""The diffusion on ONNX Runtime: what `locdit.FlowMatching` does with torch, from the exported round."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..onnx_session import OnnxSession
from .locdit import guided_table, padded_schedules
from .onnx_codec import open_graph
from .portable import DIT_ROUND, dit_digest


class OnnxFlowMatching:
    """``solve`` of ``FlowMatching``: Euler integration with guidance, one call of the graph a round.

    Any step count goes, for times and widths are inputs. The branch without conditioning is in the graph: rounds
    after ``cutoff_ratio`` are not guided, but no faster.

    Attributes:
        mu_size: values of a row's MU.
        cutoff_ratio: share of the solver's points up to which rounds are guided; all of them by default.
    """

    cutoff_ratio = 1.0

    def __init__(self, session: OnnxSession, device: str = "cpu") -> None:
        self._session = session
        self.mu_size = session.width("MU")
        self._device = torch.device(device)
        self._kept: dict[tuple[int, float], tuple[Tensor, Tensor, Tensor]] = {}

    @classmethod
    def from_checkpoint(cls, folder: Path, graphs: Path, *, device: str = "cpu") -> OnnxFlowMatching:
        """The graph that ``triton-speech export dit --onnx`` wrote into ``graphs``.

        Raises:
            ModuleNotFoundError: ONNX Runtime is not installed.
            ValueError: there is no graph, or it was made of another checkpoint.
        """
        return cls(open_graph(folder, graphs, DIT_ROUND, "dit", dit_digest(folder), device=device), device)

    @torch.inference_mode()
    def solve(self, noise: Tensor, mu: Tensor, cond: Tensor, cfg_value: Tensor, steps: Tensor, most: int) -> Tensor:
        """noise (B, P, D), mu (B, 2h), cond (B, P, D), cfg_value (B,), steps (B,) -> latents (B, P, D), as noise.

        ``most`` is at least every row's step count and sets the number of rounds. Computed in fp32.
        """
        every_time, every_width, is_guided = self._tables(most)
        counts = steps.to(self._device)
        times, widths = every_time[counts], every_width[counts]
        guidance = torch.where(is_guided[:, counts], cfg_value.to(self._device).float(), 1.0)
        x, following = (noise.to(self._device, torch.float32).contiguous().clone() for _ in range(2))
        given = {"MU": mu.to(self._device, torch.float32).contiguous()}
        given["COND"] = cond.to(self._device, torch.float32).contiguous()
        for index in range(times.shape[1]):
            columns = {"TIME": times[:, index], "WIDTH": widths[:, index], "CFG_VALUE": guidance[index]}
            columns = {name: column.contiguous().unsqueeze(1) for name, column in columns.items()}
            self._session.run({"X": x, **given, **columns}, {"NEXT_X": following})
            x, following = following, x
        return x.to(noise)

    def _tables(self, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Times and widths (most + 1, R) and guided (R, most + 1) of every count up to ``most``."""
        key = most, self.cutoff_ratio
        if key not in self._kept:
            times, widths = (table.to(self._device) for table in padded_schedules(most))
            self._kept[key] = times, widths, guided_table(most, self.cutoff_ratio).to(self._device)
        return self._kept[key]
