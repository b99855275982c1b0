"""Matrix products of a few rows, in the Triton language. Imported on a GPU only.

With a row for each stream a product is bound by reading its weights, and by starting kernels. So each kernel takes the
norm before it or the sum after it along, asks for its first weights while the kernel before it still runs, and splits K
between its warps: one chain of products over the whole of K would take longer than the weights do.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .early_start import await_input, launch_options

MOST_ROWS = 32
"""Above this many rows the library's products are faster."""
PROGRAMS = 128
"""Programs of a kernel where its columns allow: nearly one for each multiprocessor, so that all of them read."""
NARROWEST = {16: 8, 32: 16, 64: 16}
"""Fewest columns of a program by padded rows. Every program reads all of x, which narrow ones would read too often."""
BLOCK_K = 256
"""Entries of K that a program reads at a time; half of that where fewer than ``LEAST_STAGES`` would fit."""
WARPS = 4
"""Each has its own share of every block of K."""
STAGE_BYTES = 100 * 1024
"""Shared memory for reads in flight: two kernels fit beside each other."""
LEAST_STAGES, MOST_STAGES = 4, 6
SUMS = 2048
"""Sums (rows times columns) that a warp can hold in its registers beside its operands."""
ROOT_LAST = False
"""Whether a norm's root is multiplied in after the product, not before: one pass over x less, rounded otherwise."""
AHEAD_BYTES = 64 * 1024
"""Weights that a program asks for before its input is ready. Two kernels' share stays well inside the L2 cache."""


@dataclass(frozen=True)
class Tile:
    """How a product is cut: columns of a program, entries of K at a time and ahead, warps, depth of the pipeline."""

    columns: int
    block_k: int
    stages: int
    ahead: int
    warps: int = WARPS


@functools.lru_cache(maxsize=256)
def tile_for(rows: int, columns: int, k: int, gates: int, item_size: int) -> Tile | None:
    """The cut for x (rows, k) and ``gates`` weights of (columns, k); None where these kernels do not fit."""
    block_k = min(BLOCK_K, k & -k)
    if rows > MOST_ROWS or block_k < 16 * WARPS:
        return None
    block_m = padded(rows)
    own = min(max(NARROWEST[block_m], triton.cdiv(columns, PROGRAMS)), SUMS // (block_m * gates))
    wide = (block_m + gates * triton.next_power_of_2(own)) * item_size
    if block_k == BLOCK_K and 1 + STAGE_BYTES // (wide * block_k) < LEAST_STAGES:
        block_k //= 2
    stages = max(2, min(MOST_STAGES, 1 + STAGE_BYTES // (wide * block_k)))
    ahead = min(k, AHEAD_BYTES // (gates * own * item_size))
    return Tile(own, block_k, stages, 1 << (ahead.bit_length() - 1))


def fits(rows: int, k: int, dtype: torch.dtype) -> bool:
    """Whether the kernels take a product of x (rows, k)."""
    return dtype in (torch.bfloat16, torch.float16) and tile_for(rows, 1, k, 1, dtype.itemsize) is not None


@triton.jit
def _ask_for(
    weight,
    first,
    N: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
    LINE: tl.constexpr,
):
    """Brings the first AHEAD entries of a program's weights into the L2 cache, a line of 128 bytes each."""
    column = tl.minimum(first + tl.minimum(tl.arange(0, BLOCK), COLUMNS - 1), N - 1)
    line = tl.arange(0, AHEAD // LINE) * LINE
    at = weight + column[:, None] * K + line[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x,
    weight,
    gain,
    extra,
    out,
    rows,
    scale,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SHARES: tl.constexpr,
    STAGES: tl.constexpr,
    NORM_CHUNK: tl.constexpr,
    NORM: tl.constexpr,
    ROOT_LAST: tl.constexpr,
    GATED: tl.constexpr,
    EXTRA: tl.constexpr,
    AHEAD: tl.constexpr,
    LINE: tl.constexpr,
    EARLY: tl.constexpr,
):
    first = tl.program_id(0) * COLUMNS
    if EARLY and AHEAD >= LINE:
        _ask_for(weight, first, N, K, COLUMNS, BLOCK_N, AHEAD, LINE)
        if GATED:
            _ask_for(weight + N * K, first, N, K, COLUMNS, BLOCK_N, AHEAD, LINE)
    await_input(EARLY)

    row, column = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    if NORM and not ROOT_LAST:
        squares = tl.zeros([BLOCK_M], tl.float32)
        for start in tl.static_range(0, K, NORM_CHUNK):
            at = row[:, None] * K + start + tl.arange(0, NORM_CHUNK)[None, :]
            part = tl.load(x + at, mask=row[:, None] < rows, other=0.0).to(tl.float32)
            squares += tl.sum(part * part, axis=1)
        root = tl.rsqrt(squares / K + eps)

    # Shape (share, row, k) times (share, k, column): each warp multiplies its own share of K, and they are summed last.
    n = first + column
    inside = (column < COLUMNS) & (n < N)
    PART: tl.constexpr = BLOCK_K // SHARES
    k = tl.arange(0, SHARES)[:, None] * PART + tl.arange(0, PART)[None, :]
    x_at = x + row[None, :, None] * K + k[:, None, :]
    w_at = weight + n[None, None, :] * K + k[:, :, None]
    total = tl.zeros([SHARES, BLOCK_M, BLOCK_N], tl.float32)
    total_up = tl.zeros([SHARES, BLOCK_M, BLOCK_N], tl.float32)
    shared_squares = tl.zeros([SHARES, BLOCK_M], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        a = tl.load(x_at + start, mask=row[None, :, None] < rows, other=0.0)
        if NORM:
            g = tl.load(gain + start + k)[:, None, :].to(tl.float32)
            wide = a.to(tl.float32)
            if ROOT_LAST:
                shared_squares += tl.sum(wide * wide, axis=2)
                a = (wide * g).to(a.dtype)
            else:
                a = (wide * root[None, :, None] * g).to(a.dtype)
        w = tl.load(w_at + start, mask=inside[None, None, :], other=0.0)
        total = tl.dot(a, w, total, input_precision="ieee")
        if GATED:
            up = tl.load(w_at + N * K + start, mask=inside[None, None, :], other=0.0)
            total_up = tl.dot(a, up, total_up, input_precision="ieee")

    dtype = x.dtype.element_ty
    wanted = (row[:, None] < rows) & inside[None, :]
    at = row[:, None] * N + n[None, :]
    value = tl.sum(total, axis=0)
    value_up = tl.sum(total_up, axis=0)
    if NORM and ROOT_LAST:
        last = tl.rsqrt(tl.sum(shared_squares, axis=0) / K + eps)[:, None]
        value *= last
        value_up *= last
    if EXTRA == "bias":
        value += tl.load(extra + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    y = value.to(dtype)
    if EXTRA == "residual":
        before = tl.load(extra + at, mask=wanted, other=0.0).to(tl.float32)
        y = (before + scale * y.to(tl.float32)).to(dtype)
    if GATED:
        gate = y.to(tl.float32)
        active = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        y = (active * value_up.to(dtype).to(tl.float32)).to(dtype)
    tl.store(out + at, y, mask=wanted)


def norm_linear(x: Tensor, gain: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See ``ops.norm_linear``."""
    return _launch(x, weight, gain=gain, eps=eps, extra=bias, kind="none" if bias is None else "bias")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See ``ops.linear``."""
    return _launch(x, weight, extra=bias, kind="none" if bias is None else "bias")


def norm_gate_up(x: Tensor, gain: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """See ``ops.norm_gate_up``."""
    return _launch(x, gate_up, gain=gain, eps=eps, gated=True)


def linear_add(y: Tensor, weight: Tensor, x: Tensor, scale: float) -> Tensor:
    """See ``ops.linear_add``."""
    return _launch(y, weight, extra=x.contiguous(), kind="residual", scale=scale)


def _launch(
    x: Tensor,
    weight: Tensor,
    *,
    gain: Tensor | None = None,
    eps: float = 0.0,
    extra: Tensor | None = None,
    kind: str = "none",
    scale: float = 1.0,
    gated: bool = False,
    tile: Tile | None = None,
) -> Tensor:
    x = x.contiguous()
    gates = 2 if gated else 1
    columns, k = weight.shape[0] // gates, weight.shape[1]
    rows = x.numel() // k
    tile = tile or tile_for(rows, columns, k, gates, x.element_size())
    assert tile is not None, "ops.py asks fits() first"
    out = torch.empty(*x.shape[:-1], columns, dtype=x.dtype, device=x.device)
    block_m = padded(rows)
    _linear[(triton.cdiv(columns, tile.columns),)](
        x,
        weight,
        weight if gain is None else gain,
        weight if extra is None else extra,
        out,
        rows,
        scale,
        eps,
        N=columns,
        K=k,
        COLUMNS=tile.columns,
        BLOCK_M=block_m,
        BLOCK_N=triton.next_power_of_2(tile.columns),
        BLOCK_K=tile.block_k,
        SHARES=tile.warps,
        STAGES=tile.stages,
        NORM_CHUNK=min(k & -k, 16384 // block_m),
        NORM=gain is not None,
        ROOT_LAST=ROOT_LAST,
        GATED=gated,
        EXTRA=kind,
        AHEAD=tile.ahead,
        LINE=128 // x.element_size(),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launch_options(x.device),
    )
    return out


def padded(rows: int) -> int:
    return max(16, triton.next_power_of_2(rows))
