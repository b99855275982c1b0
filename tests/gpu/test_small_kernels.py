"""Products of few rows, solver steps and noise: each kernel computes what plain torch does, started early or not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="the Triton language is not installed here")

from triton_speech.families.voxcpm2 import early_start, locdit, ops, small_kernels, tail_kernels
from triton_speech.families.voxcpm2.noise import gaussian

LIMITS = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
# (columns, K) of the products of both stacks, and a narrow one whose columns do not fill its programs.
SHAPES = [(2560, 1024), (1024, 4096), (64, 1024), (2048, 6144), (100, 192)]
ROWS = [1, 22, 32]

dtypes = pytest.mark.parametrize("dtype", LIMITS, ids=str)
shapes = pytest.mark.parametrize(("columns", "k"), SHAPES)
rows_ = pytest.mark.parametrize("rows", ROWS)


@pytest.fixture(params=[0, 1, 2], ids=["one after another", "early", "at once"])
def any_start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_start, "EARLY_START", request.param)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to("cuda", dtype)


def weight_of(columns: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    return (draw(columns, k) / k**0.5).to(dtype)


def plain(function, *args):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ops, "_HAS_TRITON_LANGUAGE", False)
        return function(*args)


def check(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=LIMITS[want.dtype], atol=LIMITS[want.dtype])


def gained(rows: int, k: int, dtype: torch.dtype) -> ops.Gained:
    return ops.gain_rows(draw(rows, k, dtype=dtype), 1 + 0.1 * draw(k, dtype=dtype))


@dtypes
@shapes
@rows_
@pytest.mark.parametrize("biased", [False, True])
def test_root_linear(dtype, columns, k, rows, biased):
    bias = draw(columns, dtype=dtype) if biased else None
    given, weight = gained(rows, k, dtype), weight_of(columns, k, dtype)
    want = plain(ops.root_linear, given, 1e-5, weight, bias)
    check(small_kernels.root_linear(given.gained, padded(given), 1e-5, weight, bias), want)


@dtypes
@shapes
@rows_
def test_linear(dtype, columns, k, rows):
    x, weight, bias = draw(rows, k, dtype=dtype), weight_of(columns, k, dtype), draw(columns, dtype=dtype)
    check(small_kernels.linear(x, weight, bias), F.linear(x, weight, bias))


@dtypes
@shapes
@rows_
def test_root_gate_up(dtype, columns, k, rows):
    given, weight = gained(rows, k, dtype), weight_of(2 * columns, k, dtype)
    want = plain(ops.root_gate_up, given, 1e-5, weight)
    check(small_kernels.root_gate_up(given.gained, padded(given), 1e-5, weight), want)


@dtypes
@shapes
@rows_
def test_linear_add(dtype, columns, k, rows):
    gain = 1 + 0.1 * draw(columns, dtype=dtype)
    args = draw(rows, k, dtype=dtype), weight_of(columns, k, dtype), draw(rows, columns, dtype=dtype), 0.3, gain
    want = plain(ops.linear_add, *args)
    out, scaled, sums = small_kernels.linear_add(*args)
    check(out, want.x)
    check(scaled, want.gained)
    torch.testing.assert_close(sums.sum(0)[:rows], want.squares[0], rtol=LIMITS[dtype], atol=0)


@dtypes
@rows_
@pytest.mark.parametrize("k", [1024, 192])
def test_gain_rows(dtype, rows, k):
    x, gain = draw(rows, k, dtype=dtype), 1 + 0.1 * draw(k, dtype=dtype)
    want = plain(ops.gain_rows, x, gain)
    scaled, sums = small_kernels.gain_rows(x, gain)
    check(scaled, want.gained)
    torch.testing.assert_close(sums[:, :rows], want.squares, rtol=1e-5, atol=0)
    assert not sums[:, rows:].any()


def padded(rows: ops.Gained) -> torch.Tensor:
    """The squares in the form that the kernels hand on: padded rows, and in parts."""
    count = rows.x.shape[0]
    sums = rows.squares.sum(0)[:count]
    whole = F.pad(sums, (0, small_kernels.padded(count) - count))
    return torch.stack((0.25 * whole, 0.5 * whole, 0.25 * whole))


def test_a_row_does_not_depend_on_its_company():
    """Rows of one tile height are summed in one order."""
    weight, x = weight_of(2560, 1024, torch.bfloat16), draw(22, 1024, dtype=torch.bfloat16)
    gain = torch.ones(1024, device="cuda", dtype=torch.bfloat16)
    whole = small_kernels.root_linear(*small_kernels.gain_rows(x, gain), 1e-5, weight)
    assert torch.equal(small_kernels.root_linear(*small_kernels.gain_rows(x[:17], gain), 1e-5, weight), whole[:17])


@pytest.mark.usefixtures("any_start")
def test_a_chain_in_a_graph_gives_what_it_gives_step_by_step():
    """Each kernel reads what the one before it has just written, and buffers are used again on the way."""
    x = draw(22, 1024, dtype=torch.bfloat16)
    gain = torch.ones(1024, device="cuda", dtype=torch.bfloat16)
    gate_up, down = weight_of(8192, 1024, torch.bfloat16), weight_of(1024, 4096, torch.bfloat16)

    def chain(wait):
        rows = ops.gain_rows(x, gain)
        for _ in range(40):
            inner = ops.root_gate_up(rows, 1e-5, gate_up)
            wait()
            rows = ops.linear_add(inner, down, rows.x, 0.2, gain)
            wait()
        return rows.x

    expected = chain(torch.cuda.synchronize)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain(lambda: None)
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)


@pytest.mark.usefixtures("any_start")
@dtypes
@pytest.mark.parametrize("batch", [1, 5, 64])
@pytest.mark.parametrize("branches", [2, 1])
@pytest.mark.parametrize(("patch", "dim", "size"), [(4, 64, 1024), (2, 8, 96)])
def test_solver_step(dtype, batch, branches, patch, dim, size):
    x = draw(batch, patch, dim, dtype=dtype)
    # Velocities are the end of whole sequences, widths and times one round of all.
    rows = branches * batch
    velocity = draw(rows, 3 + 2 * patch, dim, dtype=dtype)[:, -patch:]
    guidance, width = 2 + draw(batch), draw(batch, 9)[:, 3]
    sequence, time = draw(rows, 3 + 2 * patch, size, dtype=dtype), draw(batch, 9, size, dtype=dtype)[:, 4]
    weight, bias = weight_of(size, dim, dtype), draw(size, dtype=dtype)
    expected = locdit.guided_step(velocity, x, guidance, width)
    placed = sequence.clone()
    placed[:, 2] = time.repeat(branches, 1)
    placed[:, -patch:] = F.linear(expected, weight, bias).repeat(branches, 1, 1)
    got = tail_kernels.solver_step(x, (velocity, guidance, width, 1e-8), (sequence, time, 2, weight, bias))
    check(got, expected)
    check(sequence, placed)
    check(tail_kernels.solver_step(x, (velocity, guidance, width, 1e-8), None), expected)
    sequence.zero_()
    assert tail_kernels.solver_step(expected, None, (sequence, time, 2, weight, bias)) is expected
    check(sequence[:, 2:3], placed[:, 2:3])
    check(sequence[:, -patch:], placed[:, -patch:])


@pytest.mark.parametrize("lanes", [256, 16])
def test_noise(lanes):
    seed = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123456789012345678])
    frame = torch.tensor([0, 7, 29, 1000, -3, 2**33])
    got = gaussian(seed.cuda(), frame.cuda(), lanes).cpu()
    torch.testing.assert_close(got, gaussian(seed, frame, lanes), rtol=1e-6, atol=1e-6)
