"""Running averages of weights: what is exported, for it is better than any single step's."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Averages:
    """The average of every parameter of ``module``, with ``decay`` at most; shorter in the beginning."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._parameters = dict(module.named_parameters())
        self._decay = decay
        self.values = {name: one.detach().clone() for name, one in self._parameters.items()}

    @torch.no_grad()
    def update(self, number: int) -> None:
        """After step ``number``, counted from 0."""
        decay = min(self._decay, (1 + number) / (10 + number))
        torch._foreach_lerp_(list(self.values.values()), list(self._parameters.values()), 1 - decay)

    @torch.no_grad()
    def load(self, values: dict[str, Tensor]) -> None:
        for name, value in self.values.items():
            value.copy_(values[name])

    @torch.no_grad()
    def apply(self) -> None:
        """Makes the averages the parameters."""
        for name, parameter in self._parameters.items():
            parameter.copy_(self.values[name])
