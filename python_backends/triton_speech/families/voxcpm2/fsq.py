"""Finite scalar quantisation of the LM's state at audio positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import ops


class ScalarQuantization(nn.Module):
    """Each latent dimension is squashed by tanh and rounded to a multiple of ``1 / scale`` (arXiv 2309.15505)."""

    def __init__(self, size: int, latent_dim: int, scale: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(size, latent_dim)
        self.out_proj = nn.Linear(latent_dim, size)
        self.scale = scale

    def levels(self, x: Tensor) -> Tensor:
        """x (..., H) -> scaled latents (..., latent_dim) before rounding; for telling how near an edge they are."""
        return torch.tanh(ops.linear(x, self.in_proj)) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """x (..., H) -> (..., H)."""
        return ops.linear(torch.round(self.levels(x)) / self.scale, self.out_proj)
