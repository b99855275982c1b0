"""Fused kernels in the Triton language for what ``ops.py`` computes. Imported on a GPU only.

Sums and rotations are in fp32; what plain torch would round to the tensors' type in between is rounded here too.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .early_start import await_input, launch_options

SILU_BLOCK = 1024
TOGETHER = 4
"""Heads that one program of the local attention takes. On an H200 four are fastest for 2 sequences as for 128."""


@triton.jit
def _add_norm(
    x,
    delta,
    weight,
    total,
    normed,
    scale,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    EARLY: tl.constexpr,
):
    await_input(EARLY)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    at = tl.program_id(0).to(tl.int64) * SIZE + columns
    value = tl.load(x + at, mask=inside, other=0.0)
    if ADD:
        change = tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
        value = (value.to(tl.float32) + scale * change).to(value.dtype)
        tl.store(total + at, value, mask=inside)
    wide = value.to(tl.float32)
    root = tl.rsqrt(tl.sum(wide * wide, axis=0) / SIZE + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, (wide * root * gain).to(value.dtype), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, scale: float) -> tuple[Tensor, Tensor]:
    """See ``ops.add_norm``."""
    x = x.contiguous()
    size = x.shape[-1]
    normed = torch.empty_like(x)
    total = x if delta is None else torch.empty_like(x)
    change = x if delta is None else delta.contiguous()
    _add_norm[(x.numel() // size,)](
        x,
        change,
        weight,
        total,
        normed,
        scale,
        eps,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        ADD=delta is not None,
        **launch_options(x.device),
    )
    return total, normed


@triton.jit
def _silu_mul(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    await_input(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + columns, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    active = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out + row * SIZE + columns, active * up, mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See ``ops.silu_mul``."""
    gate_up = gate_up.contiguous()
    size = gate_up.shape[-1] // 2
    out = torch.empty(*gate_up.shape[:-1], size, dtype=gate_up.dtype, device=gate_up.device)
    grid = (out.numel() // size, triton.cdiv(size, SILU_BLOCK))
    _silu_mul[grid](gate_up, out, SIZE=size, BLOCK=SILU_BLOCK, **launch_options(out.device))
    return out


@triton.jit
def _rotate_heads(qkv, cos, sin, row_stride, head_stride, HALF: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    await_input(EARLY)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < HALF
    start = qkv + row * row_stride + head * head_stride
    first = tl.load(start + columns, mask=inside, other=0.0)
    second = tl.load(start + HALF + columns, mask=inside, other=0.0)
    c = tl.load(cos + row * 2 * HALF + columns, mask=inside, other=0.0)
    s = tl.load(sin + row * 2 * HALF + columns, mask=inside, other=0.0)
    tl.store(start + columns, (first.to(tl.float32) * c - second.to(tl.float32) * s).to(first.dtype), mask=inside)
    tl.store(
        start + HALF + columns, (second.to(tl.float32) * c + first.to(tl.float32) * s).to(first.dtype), mask=inside
    )


def rotate_heads(qkv: Tensor, cos: Tensor, sin: Tensor, rotated: int) -> Tensor:
    """See ``ops.rotate_heads``. In place."""
    rows, _, size = qkv.shape
    _rotate_heads[(rows, rotated)](
        qkv,
        cos.contiguous(),
        sin.contiguous(),
        qkv.stride(0),
        qkv.stride(1),
        HALF=size // 2,
        BLOCK=triton.next_power_of_2(size // 2),
        **launch_options(qkv.device),
    )
    return qkv


@triton.jit
def _turned(start, c, s, at, inside, HALF: tl.constexpr):
    """Both halves of rows, rotated, in the rows' own type."""
    first = tl.load(start + at, mask=inside, other=0.0)
    second = tl.load(start + HALF + at, mask=inside, other=0.0)
    wide1, wide2 = first.to(tl.float32), second.to(tl.float32)
    return (wide1 * c - wide2 * s).to(first.dtype), (wide2 * c + wide1 * s).to(first.dtype)


@triton.jit
def _local_attention(
    qkv,
    cos,
    sin,
    out,
    scale,
    length,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    TOGETHER: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One sequence and ``TOGETHER`` heads that share a key head; their query rows lie one below the other."""
    await_input(EARLY)
    batch, first_head = tl.program_id(0).to(tl.int64), tl.program_id(1) * TOGETHER
    stride = (HEADS + 2 * KV_HEADS) * 2 * HALF
    columns = tl.arange(0, BLOCK)
    rows = tl.arange(0, ROWS)
    many = tl.arange(0, TOGETHER * ROWS)
    head, row = first_head + many // ROWS, many % ROWS
    base = qkv + batch * length * stride

    inside = (rows[:, None] < length) & (columns[None, :] < HALF)
    angle = rows[:, None] * 2 * HALF + columns[None, :]
    c = tl.load(cos + angle, mask=inside, other=0.0)
    s = tl.load(sin + angle, mask=inside, other=0.0)
    at = rows[:, None] * stride + columns[None, :]
    key = (HEADS + first_head // (HEADS // KV_HEADS)) * 2 * HALF
    # Read with the others, not when it is needed: one wait for memory instead of two.
    value = base + key + KV_HEADS * 2 * HALF
    v1 = tl.load(value + at, mask=inside, other=0.0)
    v2 = tl.load(value + HALF + at, mask=inside, other=0.0)
    k1, k2 = _turned(base + key, c, s, at, inside, HALF)

    inside_many = (row[:, None] < length) & (columns[None, :] < HALF)
    angle = row[:, None] * 2 * HALF + columns[None, :]
    c = tl.load(cos + angle, mask=inside_many, other=0.0)
    s = tl.load(sin + angle, mask=inside_many, other=0.0)
    at_many = row[:, None] * stride + head[:, None] * 2 * HALF + columns[None, :]
    q1, q2 = _turned(base, c, s, at_many, inside_many, HALF)

    scores = tl.dot(q1, tl.trans(k1), input_precision="ieee") + tl.dot(q2, tl.trans(k2), input_precision="ieee")
    scores = tl.where(rows[None, :] < length, scores * scale, float("-inf"))
    shares = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    shares = (shares / tl.sum(shares, axis=1)[:, None]).to(q1.dtype)
    to = out + batch * length * HEADS * 2 * HALF
    where = (row[:, None] * HEADS + head[:, None]) * 2 * HALF + columns[None, :]
    tl.store(to + where, tl.dot(shares, v1, input_precision="ieee").to(q1.dtype), mask=inside_many)
    tl.store(to + HALF + where, tl.dot(shares, v2, input_precision="ieee").to(q1.dtype), mask=inside_many)


def local_attention(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int) -> Tensor:
    """See ``ops.local_attention``."""
    qkv = qkv.contiguous()
    batch, length, _, size = qkv.shape
    out = torch.empty(batch, length, heads, size, dtype=qkv.dtype, device=qkv.device)
    together = math.gcd(heads // kv_heads, TOGETHER)
    _local_attention[(batch, heads // together)](
        qkv,
        cos.contiguous(),
        sin.contiguous(),
        out,
        size**-0.5,
        length,
        HEADS=heads,
        KV_HEADS=kv_heads,
        TOGETHER=together,
        HALF=size // 2,
        ROWS=max(16, triton.next_power_of_2(length)),
        BLOCK=max(16, triton.next_power_of_2(size // 2)),
        num_warps=together,
        **launch_options(qkv.device),
    )
    return out
