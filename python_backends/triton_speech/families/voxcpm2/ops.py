"""The small operations between the matrix products, and products of few rows: plain torch, on a GPU one kernel each.

On a GPU a decode step is bound by the number of kernels. ``kernels.py`` and ``small_kernels.py`` hold the fused ones;
the functions here say what they compute and are what runs everywhere else.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A torch built for a GPU brings the Triton language along; one for the CPU does not.
_HAS_TRITON_LANGUAGE = importlib.util.find_spec("triton") is not None


def _kernels(x: Tensor) -> Any:
    if not (x.is_cuda and _HAS_TRITON_LANGUAGE):
        return None
    from . import kernels

    return kernels


def tail_kernels(x: Tensor) -> Any:
    """The module of kernels for what a step computes beside its stacks, or None where there is none for x."""
    if _kernels(x) is None:
        return None
    from . import tail_kernels

    return tail_kernels


def few_rows(x: Tensor, widths: tuple[int, ...]) -> bool:
    """Whether products of x (..., K) take longer to start than to compute: on a GPU, by the number of rows.

    ``widths`` are the K of all products that are to be taken with so many rows.
    """
    if _kernels(x) is None:
        return False
    from . import small_kernels

    return all(small_kernels.fits(x.numel() // x.shape[-1], width, x.dtype) for width in widths)


def _small_kernels(x: Tensor) -> Any:
    if not few_rows(x, (x.shape[-1],)):
        return None
    from . import small_kernels

    return small_kernels


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """What ``layer`` computes of x (..., K)."""
    if (kernels := _small_kernels(x)) is not None:
        return kernels.linear(x, layer.weight, layer.bias)
    return layer(x)


def norm_linear(x: Tensor, gain: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """RMS norm of x (..., K), then its product with a weight (N, K) -> (..., N)."""
    if (kernels := _small_kernels(x)) is not None:
        return kernels.norm_linear(x, gain, eps, weight, bias)
    return F.linear(F.rms_norm(x, gain.shape, gain, eps), weight, bias)


def norm_gate_up(x: Tensor, gain: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """RMS norm of x (..., K), its product with a weight (2 F, K), gate before up -> ``silu(gate) * up`` (..., F)."""
    if (kernels := _small_kernels(x)) is not None:
        return kernels.norm_gate_up(x, gain, eps, gate_up)
    return silu_mul(F.linear(F.rms_norm(x, gain.shape, gain, eps), gate_up))


def linear_add(y: Tensor, weight: Tensor, x: Tensor, scale: float) -> Tensor:
    """Residual sum ``x + scale * y W``: y (..., K), weight (N, K), x and result (..., N)."""
    if (kernels := _small_kernels(y)) is not None:
        return kernels.linear_add(y, weight, x, scale)
    return torch.add(x, F.linear(y, weight), alpha=scale)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, scale: float) -> tuple[Tensor, Tensor]:
    """Residual sum ``x + scale * delta`` and its RMS norm; x, delta (..., H), both results (..., H)."""
    if (kernels := _kernels(x)) is not None:
        return kernels.add_norm(x, delta, weight, eps, scale)
    if delta is not None:
        x = torch.add(x, delta, alpha=scale)
    return x, F.rms_norm(x, weight.shape, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """(..., 2 F), gate before up -> ``silu(gate) * up`` (..., F)."""
    if (kernels := _kernels(gate_up)) is not None:
        return kernels.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate_heads(qkv: Tensor, cos: Tensor, sin: Tensor, rotated: int) -> Tensor:
    """Rotates the first ``rotated`` heads of qkv (N, heads, d) by angles (N, d) in fp32; may work in place."""
    if (kernels := _kernels(qkv)) is not None:
        return kernels.rotate_heads(qkv, cos, sin, rotated)
    return torch.cat((_rotate(qkv[:, :rotated], cos.unsqueeze(1), sin.unsqueeze(1)), qkv[:, rotated:]), dim=1)


def local_attention(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Rotary full attention inside short sequences.

    Args:
        qkv: (B, T, heads + 2 kv_heads, d): queries, keys, values.
        cos, sin: (T, d) fp32.

    Returns:
        (B, T, heads, d).
    """
    if (kernels := _kernels(qkv)) is not None:
        return kernels.local_attention(qkv, cos, sin, heads, kv_heads)
    turned = _rotate(qkv[:, :, : heads + kv_heads], cos.unsqueeze(1), sin.unsqueeze(1))
    q, k = torch.split(turned, [heads, kv_heads], dim=2)
    v = qkv[:, :, heads + kv_heads :]
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=True)
    return out.transpose(1, 2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)
