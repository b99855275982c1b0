"""Causal convolutions whose past is handed in, so that any division of a signal into pieces gives the same result.

All that a stream's convolutions remember lies side by side in one row of floats. ``reserve`` gives each its place;
a row of zeros is a stream that is about to begin.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder_layers import RMSNorm
from .config import KERNEL, TokenizerConfig


class Past:
    """The last ``frames`` inputs of a convolution: a place within the row of a stream."""

    def __init__(self, channels: int, frames: int) -> None:
        self.channels, self.frames = channels, frames
        self.start = 0

    @property
    def size(self) -> int:
        return self.channels * self.frames

    def extend(self, x: Tensor, rows: Tensor) -> Tensor:
        """x (B, C, T) with the past before it (B, C, frames + T); writes the new past into rows (B, floats)."""
        place = rows[:, self.start : self.start + self.size]
        extended = torch.cat((place.view(-1, self.channels, self.frames), x), dim=2)
        place.copy_(extended[:, :, extended.shape[2] - self.frames :].flatten(1))
        return extended


class CausalConv(nn.Module):
    """(B, C, T) -> (B, C', T / stride). The end of a signal that is no multiple of the stride is filled with zeros."""

    def __init__(self, channels: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = _named(conv=nn.Conv1d(channels, out, kernel, stride=stride, groups=groups))
        self.stride = stride
        self.past = Past(channels, kernel - stride)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.conv["conv"](self.past.extend(F.pad(x, (0, -x.shape[2] % self.stride)), rows))


class CausalUpsample(nn.Module):
    """(B, C, T) -> (B, C', T * stride); each input reaches over its own stride and the next one."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.convtr = _named(convtr=nn.ConvTranspose1d(channels, out, 2 * stride, stride=stride))
        self.stride = stride
        self.past = Past(channels, 1)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.convtr["convtr"](self.past.extend(x, rows))[:, :, self.stride : -self.stride]


class FeedForward(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(size, 4 * size)
        self.linear2 = nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(F.gelu(self.linear1(x)))


class Block(nn.Module):
    """A depthwise convolution, then a network over channels, each scaled and added (as ConvNeXt, arXiv 2201.03545)."""

    def __init__(self, size: int, config: TokenizerConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(size, config.layernorm_eps)
        self.ffn_norm = RMSNorm(size, config.layernorm_eps)
        self.mixer = _named(conv=CausalConv(size, size, KERNEL, groups=size))
        self.ffn = FeedForward(size)
        self.gamma = nn.Parameter(torch.full((size,), config.layer_scale_init_value))
        self.ffn_gamma = nn.Parameter(torch.full((size,), config.layer_scale_init_value))

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        normed = self.norm(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.mixer["conv"](normed, rows) * self.gamma.unsqueeze(1)
        mixed = self.ffn(self.ffn_norm(x.transpose(1, 2))) * self.ffn_gamma
        return x + mixed.transpose(1, 2)


def _named(**parts: nn.Module) -> nn.ModuleDict:
    """The checkpoint's names have one level more than there is to say."""
    return nn.ModuleDict(parts)


def reserve(module: nn.Module) -> int:
    """Gives every convolution in ``module`` its place in a row; returns the floats of a row."""
    floats = 0
    for part in module.modules():
        if isinstance(part, CausalConv | CausalUpsample):
            part.past.start = floats
            floats += part.past.size
    return floats
