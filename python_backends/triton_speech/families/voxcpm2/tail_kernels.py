"""What a step computes beside its stacks, a kernel each, in the Triton language: solver steps and noise.

Imported on a GPU only. ``locdit.py`` and ``noise.py`` say what is computed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from .early_start import await_input, launch_options

PLACED_COLUMNS = 64
NOISE_BLOCK = 128
_LANE, _FRAME = tl.constexpr(0x9E3779B1), tl.constexpr(0x85EBCA77)
_MIX1, _MIX2, _MIX3 = tl.constexpr(0xED5AD4BB), tl.constexpr(0xAC4C1B51), tl.constexpr(0x31848BAB)


@triton.jit(do_not_specialize=["batch", "velocity_stride", "width_stride", "time_stride"])
def _solver_step(
    velocity,
    x,
    guidance,
    width,
    x_out,
    sequence,
    time,
    weight,
    bias,
    batch,
    velocity_stride,
    width_stride,
    time_stride,
    eps,
    P: tl.constexpr,
    D: tl.constexpr,
    SIZE: tl.constexpr,
    LENGTH: tl.constexpr,
    TIME_AT: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COLUMNS: tl.constexpr,
    BRANCHES: tl.constexpr,
    STEP: tl.constexpr,
    PLACE: tl.constexpr,
    EARLY: tl.constexpr,
):
    await_input(EARLY)
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    p, d = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_D)
    at = p[:, None] * D + d[None, :]
    inside = (p[:, None] < P) & (d[None, :] < D)
    now = tl.load(x + row * P * D + at, mask=inside, other=0.0)
    if STEP:
        conditioned = tl.load(velocity + row * velocity_stride + at, mask=inside, other=0.0).to(tl.float32)
        guided = conditioned
        if BRANCHES == 2:
            free = tl.load(velocity + (row + batch) * velocity_stride + at, mask=inside, other=0.0).to(tl.float32)
            along = tl.sum(tl.sum(conditioned * free, axis=1), axis=0)
            free *= along / (tl.sum(tl.sum(free * free, axis=1), axis=0) + eps)
            guided = free + tl.load(guidance + row) * (conditioned - free)
        change = (tl.load(width + row * width_stride) * guided).to(now.dtype)
        now = (now.to(tl.float32) - change.to(tl.float32)).to(now.dtype)
        if tile == 0:
            tl.store(x_out + row * P * D + at, now, mask=inside)
    if PLACE:
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        real = column < SIZE
        w = tl.load(weight + column[None, :] * D + d[:, None], mask=real[None, :] & (d[:, None] < D), other=0.0)
        shift = tl.load(bias + column, mask=real, other=0.0).to(tl.float32)
        tokens = (tl.dot(now, w, input_precision="ieee") + shift[None, :]).to(now.dtype)
        moment = tl.load(time + row * time_stride + column, mask=real, other=0.0)
        for branch in tl.static_range(BRANCHES):
            start = sequence + (row + branch * batch) * LENGTH * SIZE
            tl.store(start + TIME_AT * SIZE + column, moment, mask=real)
            to = (LENGTH - P + p[:, None]) * SIZE + column[None, :]
            tl.store(start + to, tokens, mask=(p[:, None] < P) & real[None, :])


def solver_step(
    x: Tensor,
    step: tuple[Tensor, Tensor, Tensor, float] | None,
    place: tuple[Tensor, Tensor, int, Tensor, Tensor] | None,
) -> Tensor:
    """One Euler step, then the new patch as tokens: ``LocDiT.advance``, or ``LocDiT.place`` without a step.

    Args:
        x: (B, P, D).
        step: velocity (2 B or B, P, D), guidance and widths (B,) fp32, epsilon.
        place: sequence of as many rows (2 B or B, T, h), time (B, h), the position of the time, weight (h, D) and
            bias (h,) of the tokens.

    Returns:
        The next x, or x itself without a step.
    """
    batch, length, dim = x.shape
    x = x.contiguous()
    velocity, guidance, width, eps = step or (x, x, x, 0.0)
    sequence, time, time_at, weight, bias = place or (x, x, 0, x, x)
    if velocity.stride()[1:] != (dim, 1):
        velocity = velocity.contiguous()
    out = torch.empty_like(x) if step else x
    tiles = triton.cdiv(sequence.shape[-1], PLACED_COLUMNS) if place else 1
    _solver_step[(batch, tiles)](
        velocity,
        x,
        guidance,
        width,
        out,
        sequence,
        time,
        weight,
        bias,
        batch,
        velocity.stride(0),
        width.stride(0),
        time.stride(0),
        eps,
        P=length,
        D=dim,
        SIZE=sequence.shape[-1],
        LENGTH=sequence.shape[1],
        TIME_AT=time_at,
        BLOCK_P=max(16, triton.next_power_of_2(length)),
        BLOCK_D=max(16, triton.next_power_of_2(dim)),
        COLUMNS=PLACED_COLUMNS,
        BRANCHES=len(velocity if step else sequence) // batch,
        STEP=step is not None,
        PLACE=place is not None,
        **launch_options(x.device),
    )
    return out


@triton.jit
def _mixed(x):
    x = (x ^ (x >> 17)) * _MIX1
    x = (x ^ (x >> 11)) * _MIX2
    x = (x ^ (x >> 15)) * _MIX3
    return x ^ (x >> 14)


@triton.jit
def _uniform(key, row_key, lane):
    bits = _mixed(_mixed(key + lane.to(tl.uint32) * _LANE) ^ row_key)
    return ((bits >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08


@triton.jit
def _gaussian(seed, frame, out, lanes, BLOCK: tl.constexpr, LIBRARY: tl.constexpr, EARLY: tl.constexpr):
    await_input(EARLY)
    row = tl.program_id(0)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    whole, index = tl.load(seed + row), tl.load(frame + row).to(tl.uint32)
    low, high = whole.to(tl.uint32), (whole >> 32).to(tl.uint32)
    key = _mixed(_mixed(low) ^ _mixed(high + _LANE) ^ (index * _FRAME))
    row_key = _mixed(low + index)
    first, second = _uniform(key, row_key, lane), _uniform(key, row_key, lane + lanes)
    turn = second * 6.283185307179586
    # The language's own logarithm is too coarse near 1.
    if LIBRARY:
        value = tl.sqrt_rn(-2.0 * libdevice.log(first)) * libdevice.cos(turn)
    else:
        value = tl.sqrt_rn(-2.0 * tl.log(first)) * tl.cos(turn)
    tl.store(out + row.to(tl.int64) * lanes + lane, value, mask=lane < lanes)


def gaussian(seed: Tensor, frame: Tensor, lanes: int) -> Tensor:
    """See ``noise.gaussian``."""
    out = torch.empty(len(seed), lanes, dtype=torch.float32, device=seed.device)
    _gaussian[(len(seed), triton.cdiv(lanes, NOISE_BLOCK))](
        seed.contiguous(),
        frame.contiguous(),
        out,
        lanes,
        BLOCK=NOISE_BLOCK,
        LIBRARY=seed.is_cuda,
        num_warps=1,
        **launch_options(seed.device),
    )
    return out
