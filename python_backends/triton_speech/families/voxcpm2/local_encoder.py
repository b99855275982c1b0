"""The local encoder: one patch of latents in, one LM-side vector out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import ops
from .config import StackConfig
from .minicpm import MiniCPM


class LocalEncoder(nn.Module):
    """A learned token in front of the patch gathers it; its final state is the patch's summary."""

    def __init__(self, config: StackConfig, *, feat_dim: int, patch_size: int) -> None:
        super().__init__()
        self.special_token = nn.Parameter(torch.zeros(1, 1, 1, config.hidden_size))
        self.in_proj = nn.Linear(feat_dim, config.hidden_size)
        self.encoder = MiniCPM(config, length=patch_size + 1)

    def forward(self, patches: Tensor) -> Tensor:
        """patches (B, P, D) -> (B, H)."""
        token = self.special_token.view(1, 1, -1).expand(patches.shape[0], 1, -1)
        x = torch.cat((token, ops.linear(patches, self.in_proj)), dim=1)
        return self.encoder(x, wanted=slice(1))[:, 0]
