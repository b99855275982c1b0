"""Each fused kernel computes what plain torch does."""

from __future__ import annotations

import pytest
import torch

from triton_speech.families.voxcpm2 import ops

DTYPES = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
SHAPES = [(2, 11), (128, 11), (3, 5), (1, 16)]


def both(monkeypatch: pytest.MonkeyPatch, function, *tensors):
    """What the kernel gives and what plain torch gives, for copies of the same tensors."""
    fused = function(*[t.clone() if isinstance(t, torch.Tensor) else t for t in tensors])
    with monkeypatch.context() as patched:
        patched.setattr(ops, "_HAS_TRITON_LANGUAGE", False)
        expected = function(*[t.clone() if isinstance(t, torch.Tensor) else t for t in tensors])
    return fused, expected


def draw(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to("cuda", dtype)


def angles(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    half = torch.rand(count, size // 2, generator=torch.Generator().manual_seed(0)).to("cuda") * 6
    both_halves = torch.cat((half, half), dim=-1)
    return both_halves.cos(), both_halves.sin()


@pytest.mark.parametrize(("dtype", "limit"), DTYPES.items())
@pytest.mark.parametrize("size", [1024, 2048, 96])
@pytest.mark.parametrize("with_delta", [False, True])
def test_add_norm(monkeypatch, dtype, limit, size, with_delta):
    x, delta = draw(7, 3, size, dtype=dtype), draw(7, 3, size, dtype=dtype)
    weight = 1 + 0.1 * draw(size, dtype=dtype)
    fused, expected = both(monkeypatch, ops.add_norm, x, delta if with_delta else None, weight, 1e-5, 0.7)
    for got, want in zip(fused, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=limit, atol=limit)


@pytest.mark.parametrize(("dtype", "limit"), DTYPES.items())
@pytest.mark.parametrize("size", [4096, 6144, 100])
def test_silu_mul(monkeypatch, dtype, limit, size):
    fused, expected = both(monkeypatch, ops.silu_mul, draw(5, 2, 2 * size, dtype=dtype))
    torch.testing.assert_close(fused, expected, rtol=limit, atol=limit)


@pytest.mark.parametrize(("dtype", "limit"), DTYPES.items())
@pytest.mark.parametrize("size", [128, 64, 32])
def test_rotate_heads(monkeypatch, dtype, limit, size):
    cos, sin = angles(9, size)
    fused, expected = both(monkeypatch, ops.rotate_heads, draw(9, 10, size, dtype=dtype), cos, sin, 7)
    torch.testing.assert_close(fused, expected, rtol=limit, atol=limit)


@pytest.mark.parametrize(("dtype", "limit"), DTYPES.items())
@pytest.mark.parametrize(("batch", "length"), SHAPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(16, 2, 128), (4, 2, 64), (2, 2, 32)])
def test_local_attention(monkeypatch, dtype, limit, batch, length, heads, kv_heads, size):
    cos, sin = angles(length, size)
    qkv = draw(batch, length, heads + 2 * kv_heads, size, dtype=dtype)
    fused, expected = both(monkeypatch, ops.local_attention, qkv, cos, sin, heads, kv_heads)
    torch.testing.assert_close(fused, expected, rtol=limit, atol=limit)
