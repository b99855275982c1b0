"""Fused kernels in the Triton language for what ``codec_ops.py`` computes, in fp32. Imported on a GPU only.

A kernel's blocks run in no order, and one that renews a stream's past must not overwrite what another still reads: the
past is read from `old` and written to `rows`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..streaming_layers import Depthwise, Output, Past, SnakeLayer

# A block's size in numbers, and at most so many channels wide.
BLOCK_SIZE = 512
BLOCK_CHANNELS = 32
NUM_WARPS = 4
# Frames that a convolution's lane slides over at most, by how many numbers there are in all. More frames spare loads
# and sines (each lane begins with the six frames before its own), fewer make more blocks.
STEPS = ((1 << 22, 16), (1 << 20, 8), (0, 4))

_PER_PI = tl.constexpr(0.31830987334251404)
_PI_HIGH = tl.constexpr(3.1415927410125732)
_PI_LOW = tl.constexpr(-8.742277657347586e-08)
# Added and taken away again, it rounds to whole numbers.
_ROUNDER = tl.constexpr(12582912.0)


@triton.jit
def _snake(x, alpha, inverse):
    """x + sin(alpha x)^2 / alpha, for angles below a million.

    The square repeats every pi, so that a short polynomial is enough.
    """
    angle = x * alpha
    turns = tl.fma(angle, _PER_PI, _ROUNDER) - _ROUNDER
    rest = tl.fma(turns, -_PI_LOW, tl.fma(turns, -_PI_HIGH, angle))
    square = rest * rest
    series = tl.fma(square, 2.600054730360508e-06, -0.0001980661518446262)
    series = tl.fma(square, series, 0.008333017291329637)
    series = tl.fma(square, series, -0.16666657096495283)
    sine = tl.fma(rest * square, series, rest)
    return tl.fma(sine * sine, inverse, x)


@triton.jit
def _frames_at(x, frame, frames, stride, valid):
    return tl.load(x + frame[:, None] * stride, mask=valid & ((frame >= 0) & (frame < frames))[:, None], other=0.0)


@triton.jit(do_not_specialize=["frames", "dilation"])
def _convolve(
    x,
    offset,
    alpha_before,
    inverse_before,
    weight,
    bias,
    alpha_after,
    inverse_after,
    out,
    old,
    rows,
    frames,
    channels,
    dilation,
    start,
    x_batch,
    x_frame,
    x_channel,
    old_batch,
    rows_batch,
    STEPS: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    BEFORE: tl.constexpr,
    AFTER: tl.constexpr,
    OUTPUT: tl.constexpr,
):
    """Seven taps, each lane of a block sliding over STEPS frames that are `dilation` apart.

    Such frames share six of their taps' inputs, so each input is loaded and passed through the snake once in a lane.
    Lanes number the residues modulo `dilation` within groups of STEPS * dilation frames.
    """
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    group = lane // dilation
    first = group * dilation * STEPS + lane % dilation
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    batch = tl.program_id(2).to(tl.int64)
    inside = c < channels
    context = 6 * dilation
    valid = (first < tl.maximum(frames, dilation))[:, None] & inside[None, :]
    x_at = x + batch * x_batch + c[None, :] * x_channel
    old_at = old + batch * old_batch + start + c[None, :]
    rows_at = rows + batch * rows_batch + start + c[None, :]
    shift = tl.load(offset + c, mask=inside, other=0.0)[None, :]
    if BEFORE:
        alpha1 = tl.load(alpha_before + c, mask=inside, other=0.0)[None, :]
        inverse1 = tl.load(inverse_before + c, mask=inside, other=0.0)[None, :]
    if AFTER:
        alpha2 = tl.load(alpha_after + c, mask=inside, other=0.0)[None, :]
        inverse2 = tl.load(inverse_after + c, mask=inside, other=0.0)[None, :]
    level = tl.load(bias) if OUTPUT else tl.load(bias + c, mask=inside, other=0.0)[None, :]
    w0 = tl.load(weight + c, mask=inside, other=0.0)[None, :]
    w1 = tl.load(weight + channels + c, mask=inside, other=0.0)[None, :]
    w2 = tl.load(weight + 2 * channels + c, mask=inside, other=0.0)[None, :]
    w3 = tl.load(weight + 3 * channels + c, mask=inside, other=0.0)[None, :]
    w4 = tl.load(weight + 4 * channels + c, mask=inside, other=0.0)[None, :]
    w5 = tl.load(weight + 5 * channels + c, mask=inside, other=0.0)[None, :]
    w6 = tl.load(weight + 6 * channels + c, mask=inside, other=0.0)[None, :]
    v0 = tl.zeros((LANES, CHANNELS), tl.float32)
    v1 = v0
    v2 = v0
    v3 = v0
    v4 = v0
    v5 = v0
    # Four loads are under way ahead of their use; the compiler could not move them over the stores between.
    next0 = _frames_at(x_at, first - context, frames, x_frame, valid)
    next1 = _frames_at(x_at, first - 5 * dilation, frames, x_frame, valid)
    next2 = _frames_at(x_at, first - 4 * dilation, frames, x_frame, valid)
    next3 = _frames_at(x_at, first - 3 * dilation, frames, x_frame, valid)
    for step in tl.static_range(STEPS + 6):
        frame = first + (step - 6) * dilation
        value = next0 + shift
        next0 = next1
        next1 = next2
        next2 = next3
        if step + 4 < STEPS + 6:
            next3 = _frames_at(x_at, frame + 4 * dilation, frames, x_frame, valid)
        if BEFORE:
            value = _snake(value, alpha1, inverse1)
        mine = frame < frames
        if step < 6:
            past = (frame < 0)[:, None] & valid
            kept = tl.load(old_at + (frame + context)[:, None] * channels, mask=past, other=0.0)
            value = tl.where(past, kept, value)
            # Later frames of these six are another group's own.
            mine = (group == 0) & (frame < 0)
        keep = (mine & (frame >= frames - context))[:, None] & valid
        tl.store(rows_at + (frame - frames + context)[:, None] * channels, value, mask=keep)
        if step >= 6:
            total = v0 * w0 + v1 * w1 + v2 * w2 + v3 * w3 + v4 * w4 + v5 * w5 + value * w6
            if OUTPUT:
                loud = tl.sum(total, axis=1) + level
                loud = 1.0 - 2.0 / (tl.exp(2.0 * loud) + 1.0)
                tl.store(out + batch * frames + frame, loud, mask=mine)
            else:
                total = total + level
                if AFTER:
                    total = _snake(total, alpha2, inverse2)
                to = out + (batch * frames + frame)[:, None] * channels + c[None, :]
                tl.store(to, total, mask=mine[:, None] & valid)
        v0 = v1
        v1 = v2
        v2 = v3
        v3 = v4
        v4 = v5
        v5 = value


def depthwise(
    x: Tensor,
    offset: Tensor,
    before: SnakeLayer | None,
    conv: Depthwise,
    after: SnakeLayer | None,
    old: Tensor,
    rows: Tensor,
) -> Tensor:
    """See ``codec_ops.depthwise``."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width = min(BLOCK_CHANNELS, triton.next_power_of_2(x.shape[2]))
    _launch(x, offset, before, conv.filters, conv.bias, conv.dilation, after, conv.past, out, old, rows, width)
    return out


def snake_output(x: Tensor, offset: Tensor, snake: SnakeLayer, conv: Output, old: Tensor, rows: Tensor) -> Tensor:
    """See ``codec_ops.snake_output``."""
    out = torch.empty(*x.shape[:2], 1, dtype=x.dtype, device=x.device)
    width = triton.next_power_of_2(x.shape[2])
    _launch(x, offset, snake, conv.weight, conv.bias, conv.dilation, None, conv.past, out, old, rows, width, True)
    return out


def _launch(
    x: Tensor,
    offset: Tensor,
    before: SnakeLayer | None,
    weight: Tensor,
    bias: Tensor,
    dilation: int,
    after: SnakeLayer | None,
    past: Past,
    out: Tensor,
    old: Tensor,
    rows: Tensor,
    width: int,
    output: bool = False,
) -> None:
    batch, frames, channels = x.shape
    lanes = max(1, BLOCK_SIZE // width)
    steps = next(steps for least, steps in STEPS if x.numel() >= least)
    while steps > 1 and triton.cdiv(frames, steps * dilation) * dilation < lanes:
        steps //= 2
    count = triton.cdiv(frames, steps * dilation) * dilation
    _convolve[(triton.cdiv(count, lanes), triton.cdiv(channels, width), batch)](
        x,
        offset,
        None if before is None else before.alpha,
        None if before is None else before.inverse,
        weight,
        bias,
        None if after is None else after.alpha,
        None if after is None else after.inverse,
        out,
        old,
        rows,
        frames,
        channels,
        dilation,
        past.start,
        *x.stride(),
        old.stride(0),
        rows.stride(0),
        STEPS=steps,
        LANES=lanes,
        CHANNELS=width,
        BEFORE=before is not None,
        AFTER=after is not None,
        OUTPUT=output,
        num_warps=NUM_WARPS,
    )


@triton.jit(do_not_specialize=["frames"])
def _snake_pairs(
    x,
    scale,
    offset,
    alpha,
    inverse,
    out,
    old,
    rows,
    frames,
    channels,
    start,
    x_batch,
    x_frame,
    x_channel,
    old_batch,
    rows_batch,
    FRAMES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    frame = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES) - 1
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    batch = tl.program_id(2).to(tl.int64)
    inside = c < channels
    gain = tl.load(scale + c, mask=inside, other=0.0)[None, :]
    shift = tl.load(offset + c, mask=inside, other=0.0)[None, :]
    wave = tl.load(alpha + c, mask=inside, other=0.0)[None, :]
    depth = tl.load(inverse + c, mask=inside, other=0.0)[None, :]
    valid = (frame < frames)[:, None] & inside[None, :]
    past = (frame < 0)[:, None] & valid
    value = _frames_at(x + batch * x_batch + c[None, :] * x_channel, frame, frames, x_frame, valid)
    value = _snake(value * gain + shift, wave, depth)
    kept = tl.load(old + batch * old_batch + start + c[None, :] + frame[:, None] * 0, mask=past, other=0.0)
    value = tl.where(past, kept, value)
    to = out + (batch * frames + frame)[:, None] * 2 * channels + c[None, :]
    tl.store(to + channels, value, mask=valid & (frame >= 0)[:, None])
    tl.store(to + 2 * channels, value, mask=valid & (frame < frames - 1)[:, None])
    last = valid & (frame == frames - 1)[:, None]
    tl.store(rows + batch * rows_batch + start + c[None, :] + frame[:, None] * 0, value, mask=last)


def snake_pairs(
    x: Tensor, scale: Tensor, offset: Tensor, snake: SnakeLayer, past: Past, old: Tensor, rows: Tensor
) -> Tensor:
    """See ``codec_ops.snake_pairs``."""
    batch, frames, channels = x.shape
    out = torch.empty(batch, frames, 2 * channels, dtype=x.dtype, device=x.device)
    width = min(BLOCK_CHANNELS, triton.next_power_of_2(channels))
    height = max(1, BLOCK_SIZE // width)
    _snake_pairs[(triton.cdiv(frames + 1, height), triton.cdiv(channels, width), batch)](
        x,
        scale,
        offset,
        snake.alpha,
        snake.inverse,
        out,
        old,
        rows,
        frames,
        channels,
        past.start,
        *x.stride(),
        old.stride(0),
        rows.stride(0),
        FRAMES=height,
        CHANNELS=width,
        num_warps=NUM_WARPS,
    )
    return out
