"""Layers of streaming decoders in plain torch; each keeps what it needs of the past in its part of a row.

Tensors are (B, T, C): a pointwise convolution is then one matrix product, and so is an upsampling convolution,
whose two input frames are neighbours in memory and whose output samples come out in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# From this many input values on, a depthwise convolution is faster than shifted multiply-adds. Only on a CPU:
# cuDNN may compute it in TF32.
MIN_DEPTHWISE_CONVOLUTION = 32768

# layer(x (B, T, C), old (B, floats), rows (B, floats)) -> (B, T', C'): reads its part of `old` and renews that part
# in `rows`. In plain torch both may be one tensor; a kernel's blocks run in no order, so fused layers need two.
Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


def tanh(x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
    return torch.tanh(x)


@dataclass(frozen=True, slots=True)
class Past:
    """Where one layer's last input frames lie in a row."""

    start: int
    end: int
    frames: int
    channels: int

    def of(self, rows: Tensor) -> Tensor:
        """The frames (B, frames, C) in rows (B, floats), no copy."""
        return rows[:, self.start : self.end].view(rows.shape[0], self.frames, self.channels)

    def join(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        """x (B, T, C) -> (B, frames + T, C); keeps the last `frames` for next time, also when T is less."""
        kept = self.of(old)
        joined = torch.cat([kept, x], dim=1)
        (kept if rows is old else self.of(rows)).copy_(joined[:, x.shape[1] :])
        return joined


class SnakeLayer:
    """x + inverse * sin(alpha * x) ** 2, alpha and inverse (C,) (arXiv 2006.08195)."""

    def __init__(self, alpha: Tensor, inverse: Tensor) -> None:
        self.alpha, self.inverse = alpha, inverse

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        wave = (x * self.alpha).sin_()
        return torch.addcmul(x, wave.square_(), self.inverse)


class Depthwise:
    """One filter for each channel: (B, T, C) -> (B, T, C)."""

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int, past: Past) -> None:
        self.weight = weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)  # (C, 1, 1, taps)
        self.filters = weight[:, 0].t().contiguous()  # (taps, C)
        self.taps = list(self.filters)
        self.bias, self.dilation, self.past = bias, dilation, past

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        frames = x.shape[1]
        x = self.past.join(x, old, rows)
        if x.device.type == "cpu" and x.numel() >= MIN_DEPTHWISE_CONVOLUTION:
            # (B, T, C) is a channels-last image of height 1; the two transpositions only rename dimensions.
            image = x.transpose(1, 2).unsqueeze(2)
            out = F.conv2d(image, self.weight, self.bias, dilation=(1, self.dilation), groups=x.shape[2])
            return out.squeeze(2).transpose(1, 2)
        out = torch.addcmul(self.bias, x[:, :frames], self.taps[0])
        for k in range(1, len(self.taps)):
            start = k * self.dilation
            out.addcmul_(x[:, start : start + frames], self.taps[k])
        return out


class Dense:
    """A convolution over all channels as one matrix product: (B, T, C) -> (B, T, C')."""

    def __init__(self, weight: Tensor, bias: Tensor, taps: int, dilation: int, past: Past) -> None:
        self.weight, self.bias = weight, bias  # (C', taps * C), (C',)
        self.taps, self.dilation, self.past = taps, dilation, past

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        if self.taps > 1:
            batch, frames, channels = x.shape
            x = self.past.join(x, old, rows)
            strides = (x.stride(0), channels, self.dilation * channels, 1)
            x = x.as_strided((batch, frames, self.taps, channels), strides).flatten(2)
        return F.linear(x, self.weight, self.bias)


class Output:
    """A convolution to one channel: (B, T, C) -> (B, T, 1).

    Each input frame is weighed once for all taps, which spares copying it once for each.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int, past: Past) -> None:
        self.weight, self.bias = weight[0].t().contiguous(), bias  # (taps, C), (1,)
        self.dilation, self.past = dilation, past

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        taps, frames = self.weight.shape[0], x.shape[1]
        weighed = F.linear(self.past.join(x, old, rows), self.weight)
        strides = (weighed.stride(0), taps, self.dilation * taps + 1)
        return weighed.as_strided((x.shape[0], frames, taps), strides).sum(2, keepdim=True).add_(self.bias)


class Upsample:
    """(B, T, C) -> (B, T * stride, C')."""

    def __init__(self, dense: Dense, channels: int) -> None:
        self.dense, self.channels = dense, channels

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        return self.dense(x, old, rows).view(x.shape[0], -1, self.channels)


class Residual:
    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        branch = x
        for layer in self.layers:
            branch = layer(branch, old, rows)
        return branch.add_(x)


class Affine:
    def __init__(self, scale: Tensor, bias: Tensor) -> None:
        self.scale, self.bias = scale.detach(), bias.detach()

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        return torch.addcmul(self.bias, x, self.scale)


class Add:
    def __init__(self, embedding: Tensor) -> None:
        self.embedding = embedding

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        return x + self.embedding


class Append:
    def __init__(self, embedding: Tensor) -> None:
        self.embedding = embedding

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([x, self.embedding.expand(*x.shape[:2], -1)], dim=2)
