"""What the fused decoder computes between its matrix products: plain torch, and on a GPU one kernel each.

At one stream a decode step is bound by the number of kernels, at many by how often activations pass through memory;
`codec_kernels` saves both. The functions here say what its kernels compute and are what runs everywhere else.

All take ``x + offset`` (or ``x * scale + offset``) for their input: biases of the product before are added here, where
x is read anyway. They read the past in `old` and renew it in `rows`, which must not be the same memory.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from ..streaming_layers import Depthwise, Output, Past, SnakeLayer
from . import triton_language

_HAS_TRITON_LANGUAGE = triton_language.IS_INSTALLED
# The Triton language's interpreter computes on a CPU: slow, but enough to test the kernels.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def has_kernels(x: Tensor) -> bool:
    """True where the functions here are kernels for tensors like `x`."""
    if not (_HAS_TRITON_LANGUAGE and (x.is_cuda or _INTERPRETED) and x.dtype == torch.float32):
        return False
    return triton_language.compiles(x.device)


def _kernels(x: Tensor) -> Any:
    if not has_kernels(x):
        return None
    from . import codec_kernels

    return codec_kernels


def depthwise(
    x: Tensor,
    offset: Tensor,
    before: SnakeLayer | None,
    conv: Depthwise,
    after: SnakeLayer | None,
    old: Tensor,
    rows: Tensor,
) -> Tensor:
    """A depthwise convolution between two snakes: x (B, T, C), offset (C,) -> (B, T, C)."""
    if (kernels := _kernels(x)) is not None:
        return kernels.depthwise(x, offset, before, conv, after, old, rows)
    x = x + offset
    if before is not None:
        x = before(x, old, rows)
    x = conv(x, old, rows)
    return x if after is None else after(x, old, rows)


def snake_pairs(
    x: Tensor, scale: Tensor, offset: Tensor, snake: SnakeLayer, past: Past, old: Tensor, rows: Tensor
) -> Tensor:
    """Each frame's snake behind the one before it: x (B, T, C), scale (C,), offset (C,) -> (B, T, 2 C)."""
    if (kernels := _kernels(x)) is not None:
        return kernels.snake_pairs(x, scale, offset, snake, past, old, rows)
    x = past.join(snake(torch.addcmul(offset, x, scale), old, rows), old, rows)
    return torch.cat([x[:, :-1], x[:, 1:]], dim=2)


def snake_output(x: Tensor, offset: Tensor, snake: SnakeLayer, conv: Output, old: Tensor, rows: Tensor) -> Tensor:
    """Snake, the convolution to one channel, and tanh: x (B, T, C), offset (C,) -> (B, T, 1)."""
    if (kernels := _kernels(x)) is not None:
        return kernels.snake_output(x, offset, snake, conv, old, rows)
    return torch.tanh(conv(snake(x + offset, old, rows), old, rows))
