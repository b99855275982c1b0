"""The small operations between the matrix products, and products of few rows: plain torch, on a GPU one kernel each.

On a GPU a decode step is bound by the number of kernels. ``kernels.py`` and ``small_kernels.py`` hold the fused ones;
the functions here say what they compute and are what runs everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import triton_language

_HAS_TRITON_LANGUAGE = triton_language.IS_INSTALLED


def _kernels(x: Tensor) -> Any:
    # The kernels have no gradients: what is being trained takes plain torch.
    if x.requires_grad or not (x.is_cuda and _HAS_TRITON_LANGUAGE and triton_language.compiles(x.device)):
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

    rows = x.numel() // x.shape[-1]
    most = small_kernels.MOST_ROWS if x.shape[-1] <= small_kernels.WIDE else small_kernels.MOST_ROWS_WIDE
    return rows <= most and all(small_kernels.fits(rows, width, x.dtype) for width in widths)


def _small_kernels(x: Tensor) -> Any:
    """The kernels for few rows where they can take x (..., K): for those who have asked ``few_rows`` before."""
    if _kernels(x) is None:
        return None
    from . import small_kernels

    return small_kernels if small_kernels.fits(x.numel() // x.shape[-1], x.shape[-1], x.dtype) else None


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """What ``layer`` computes of x (..., K)."""
    # An input that needs no gradient, such as a patch, may still meet a weight that does.
    is_trained = torch.is_grad_enabled() and layer.weight.requires_grad
    if not is_trained and few_rows(x, (x.shape[-1],)):
        from . import small_kernels

        return small_kernels.linear(x, layer.weight, layer.bias)
    return layer(x)


@dataclass(frozen=True)
class Gained:
    """Rows on their way through an RMS norm, whose root the next product divides by.

    Attributes:
        x: (..., K), the rows.
        gained: (..., K), the rows times the norm's gain, rounded to their type.
        squares: (parts, N) fp32, sums of the N rows' squares in parts; may be padded to more rows.
    """

    x: Tensor
    gained: Tensor
    squares: Tensor


def gain_rows(x: Tensor, gain: Tensor) -> Gained:
    """x (..., K) for a norm with this gain (K,)."""
    if (kernels := _small_kernels(x)) is not None:
        return Gained(x, *kernels.gain_rows(x, gain))
    return Gained(x, (x.float() * gain.float()).to(x.dtype), _squares(x))


def linear_add(y: Tensor, weight: Tensor, x: Tensor, scale: float, gain: Tensor) -> Gained:
    """Residual sum ``x + scale * y W`` for a norm with this gain (N,): y (..., K), weight (N, K), x (..., N)."""
    if (kernels := _small_kernels(y)) is not None:
        return Gained(*kernels.linear_add(y, weight, x, scale, gain))
    return gain_rows(torch.add(x, F.linear(y, weight), alpha=scale), gain)


def root_linear(rows: Gained, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Product of normed rows (..., K) with a weight (N, K) -> (..., N)."""
    if (kernels := _small_kernels(rows.gained)) is not None:
        return kernels.root_linear(rows.gained, rows.squares, eps, weight, bias)
    y = F.linear(rows.gained.float(), weight.float()) * _root(rows, eps)
    return (y if bias is None else y + bias.float()).to(weight.dtype)


def root_gate_up(rows: Gained, eps: float, gate_up: Tensor) -> Tensor:
    """Product of normed rows (..., K) with a weight (2 F, K), gate before up -> ``silu(gate) * up`` (..., F)."""
    if (kernels := _small_kernels(rows.gained)) is not None:
        return kernels.root_gate_up(rows.gained, rows.squares, eps, gate_up)
    return silu_mul(root_linear(rows, eps, gate_up))


def _squares(x: Tensor) -> Tensor:
    return x.float().square().sum(-1).view(1, -1)


def _root(rows: Gained, eps: float) -> Tensor:
    """1 / root of the mean square of each row (..., 1)."""
    shape = rows.x.shape
    sums = rows.squares.sum(0)[: rows.x.numel() // shape[-1]]
    return torch.rsqrt(sums / shape[-1] + eps).view(*shape[:-1], 1)


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
