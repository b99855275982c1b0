"""Matrix products of a few rows, in the Triton language. Imported on a GPU only.

With a row for each stream a product is bound by reading its weights, and by starting kernels. So each kernel takes the
sum after it along, asks for its first weights while the kernel before it still runs, and splits K between its warps:
one chain of products over the whole of K would take longer than the weights do. A norm is no work of its own: the
kernel that makes the rows multiplies them by its gain and sums their squares; the next product is divided by the root.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .early_start import await_input, launch_options

MOST_ROWS, WIDE, MOST_ROWS_WIDE = 32, 1024, 16
"""Above so many rows the library's products are faster; above fewer where rows are wider than ``WIDE``."""
PROGRAMS = 128
"""Programs of a kernel where its columns allow: nearly one for each multiprocessor, so that all of them read."""
NARROWEST = 8
"""Fewest columns of a program."""
BLOCK_K, GATED_BLOCK_K = 512, 256
"""Entries of K that a program reads at a time."""
WARPS = 4
"""Each has its own share of every block of K."""
STAGE_BYTES = 200 * 1024
"""Shared memory for reads in flight."""
MOST_STAGES = 5
SUMS = 2048
"""Sums (rows times columns) that a warp can hold in its registers beside its operands."""
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
    block_k = min(GATED_BLOCK_K if gates > 1 else BLOCK_K, k & -k)
    if rows > MOST_ROWS or block_k < 16 * WARPS:
        return None
    block_m = padded(rows)
    own = min(max(NARROWEST, triton.cdiv(columns, PROGRAMS)), SUMS // (block_m * gates))
    wide = (block_m + gates * triton.next_power_of_2(own)) * item_size
    stages = max(2, min(MOST_STAGES, 1 + STAGE_BYTES // (wide * block_k)))
    ahead = min(k, AHEAD_BYTES // (gates * own * item_size))
    return Tile(own, block_k, stages, 1 << (ahead.bit_length() - 1))


def fits(rows: int, k: int, dtype: torch.dtype) -> bool:
    """Whether the kernels take a product of x (rows, k)."""
    return dtype == torch.bfloat16 and tile_for(rows, 1, k, 1, dtype.itemsize) is not None


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
    squares,
    extra,
    gain,
    out,
    gained,
    sums,
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
    PARTS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    GATED: tl.constexpr,
    EXTRA: tl.constexpr,
    GAIN: tl.constexpr,
    AHEAD: tl.constexpr,
    LINE: tl.constexpr,
    EARLY: tl.constexpr,
):
    first = tl.program_id(0) * COLUMNS
    if EARLY and AHEAD >= LINE:
        _ask_for(weight, first, N, K, COLUMNS, BLOCK_N, AHEAD, LINE)
        if GATED:
            _ask_for(weight + N * K, first, N, K, COLUMNS, BLOCK_N, AHEAD, LINE)
    row, column = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    n = first + column
    inside = (column < COLUMNS) & (n < N)
    wanted = (row[:, None] < rows) & inside[None, :]
    at = row[:, None] * N + n[None, :]
    await_input(EARLY)

    # What the end needs is read first: it arrives while the products run.
    if PARTS:
        p = tl.arange(0, BLOCK_PARTS)
        parts = tl.load(squares + p[:, None] * BLOCK_M + row[None, :], mask=p[:, None] < PARTS, other=0.0)
    if EXTRA == "residual":
        before = tl.load(extra + at, mask=wanted, other=0.0).to(tl.float32)

    # Shape (share, row, k) times (share, k, column): each warp multiplies its own share of K, and they are summed last.
    PART: tl.constexpr = BLOCK_K // SHARES
    k = tl.arange(0, SHARES)[:, None] * PART + tl.arange(0, PART)[None, :]
    x_at = x + row[None, :, None] * K + k[:, None, :]
    w_at = weight + n[None, None, :] * K + k[:, :, None]
    total = tl.zeros([SHARES, BLOCK_M, BLOCK_N], tl.float32)
    total_up = tl.zeros([SHARES, BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        a = tl.load(x_at + start, mask=row[None, :, None] < rows, other=0.0)
        w = tl.load(w_at + start, mask=inside[None, None, :], other=0.0)
        total = tl.dot(a, w, total, input_precision="ieee")
        if GATED:
            up = tl.load(w_at + N * K + start, mask=inside[None, None, :], other=0.0)
            total_up = tl.dot(a, up, total_up, input_precision="ieee")

    dtype = x.dtype.element_ty
    value = tl.sum(total, axis=0)
    value_up = tl.sum(total_up, axis=0)
    if PARTS:
        root = tl.rsqrt(tl.sum(parts, axis=0) / K + eps)[:, None]
        value *= root
        value_up *= root
    if EXTRA == "bias":
        value += tl.load(extra + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    y = value.to(dtype)
    if EXTRA == "residual":
        y = (before + scale * y.to(tl.float32)).to(dtype)
    if GATED:
        gate = y.to(tl.float32)
        active = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        y = (active * value_up.to(dtype).to(tl.float32)).to(dtype)
    tl.store(out + at, y, mask=wanted)
    if GAIN:
        wide = tl.where(wanted, y.to(tl.float32), 0.0)
        g = tl.load(gain + n, mask=inside, other=0.0).to(tl.float32)
        tl.store(gained + at, (wide * g[None, :]).to(dtype), mask=wanted)
        tl.store(sums + tl.program_id(0) * BLOCK_M + row, tl.sum(wide * wide, axis=1))


@triton.jit(do_not_specialize=["rows"])
def _gain_rows(x, gain, gained, sums, rows, K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    await_input(EARLY)
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    inside = (k < K) & (row < rows)
    wide = tl.load(x + row * K + k, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gain + k, mask=k < K, other=0.0).to(tl.float32)
    tl.store(gained + row * K + k, (wide * g).to(x.dtype.element_ty), mask=inside)
    tl.store(sums + row, tl.sum(wide * wide, axis=0))


def gain_rows(x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """See ``ops.gain_rows``; the sums are (1, padded rows)."""
    x = x.contiguous()
    rows, k = x.numel() // x.shape[-1], x.shape[-1]
    gained, sums = torch.empty_like(x), torch.empty(1, padded(rows), dtype=torch.float32, device=x.device)
    _gain_rows[(padded(rows),)](
        x, gain, gained, sums, rows, K=k, BLOCK=triton.next_power_of_2(k), **launch_options(x.device)
    )
    return gained, sums


def root_linear(gained: Tensor, squares: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See ``ops.root_linear``."""
    return _launch(gained, weight, squares=squares, eps=eps, extra=bias, kind="none" if bias is None else "bias")[0]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See ``ops.linear``."""
    return _launch(x, weight, extra=bias, kind="none" if bias is None else "bias")[0]


def root_gate_up(gained: Tensor, squares: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """See ``ops.root_gate_up``."""
    return _launch(gained, gate_up, squares=squares, eps=eps, gated=True)[0]


def linear_add(y: Tensor, weight: Tensor, x: Tensor, scale: float, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See ``ops.linear_add``; the sums are (programs, padded rows), still to be added up."""
    out, gained, sums = _launch(y, weight, extra=x.contiguous(), kind="residual", scale=scale, gain=gain)
    assert gained is not None
    assert sums is not None
    return out, gained, sums


def _launch(
    x: Tensor,
    weight: Tensor,
    *,
    squares: Tensor | None = None,
    eps: float = 0.0,
    extra: Tensor | None = None,
    kind: str = "none",
    scale: float = 1.0,
    gated: bool = False,
    gain: Tensor | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    x = x.contiguous()
    gates = 2 if gated else 1
    columns, k = weight.shape[0] // gates, weight.shape[1]
    rows = x.numel() // k
    tile = tile or tile_for(rows, columns, k, gates, x.element_size())
    assert tile is not None, "ops.py asks fits() first"
    out = torch.empty(*x.shape[:-1], columns, dtype=x.dtype, device=x.device)
    block_m, programs = padded(rows), triton.cdiv(columns, tile.columns)
    gained = sums = None
    if gain is not None:
        gained, sums = torch.empty_like(out), torch.empty(programs, block_m, dtype=torch.float32, device=x.device)
    parts = 0 if squares is None else len(squares)
    _linear[(programs,)](
        x,
        weight,
        weight if squares is None else squares,
        weight if extra is None else extra,
        weight if gain is None else gain,
        out,
        out if gained is None else gained,
        out if sums is None else sums,
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
        PARTS=parts,
        BLOCK_PARTS=triton.next_power_of_2(max(parts, 1)),
        GATED=gated,
        EXTRA=kind,
        GAIN=gain is not None,
        AHEAD=tile.ahead,
        LINE=128 // x.element_size(),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launch_options(x.device),
    )
    return out, gained, sums


def padded(rows: int) -> int:
    return max(16, triton.next_power_of_2(rows))
