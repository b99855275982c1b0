"""Rotary positions, as decoders in the style of Llama turn their heads by them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .shapes_only import are_shapes_only


class Rope(nn.Module):
    """Tables (length, d) of cosines and sines in fp32."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, theta: float, length: int) -> None:
        super().__init__()
        self.head_dim, self.theta, self.length = head_dim, theta, length
        if not are_shapes_only():
            self.build_tables()

    def build_tables(self, device: torch.device | str | None = None) -> None:
        """Computes the tables; to be called when a model that was built of shapes only has got its weights."""
        dims = torch.arange(0, self.head_dim, 2, device=device).float() / self.head_dim
        angles = torch.outer(torch.arange(self.length, device=device).float(), 1.0 / self.theta**dims)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin (..., 1, d) of positions (...)."""
        return self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads x (..., heads, d) turned by angles (..., 1, d) in fp32; the result has the type of x."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)
