"""One stack, two ways through it: what each engine and number of rows gets is the same."""

from __future__ import annotations

import pytest
import torch

from triton_speech.families.voxcpm2 import ops
from triton_speech.families.voxcpm2.checkpoint import load_talker
from triton_speech.families.voxcpm2.minicpm import MiniCPM
from triton_speech.families.voxcpm2.model import VoxCPM2Talker
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def talker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VoxCPM2Talker:
    return load_talker(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), dtype=request.param))


def draw(talker: VoxCPM2Talker, *shape: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=source).to(talker.stop_head.weight.dtype)


def check(stack: MiniCPM, rows: ops.Gained, expected: torch.Tensor) -> None:
    """The root of a norm comes after the product there, so that the last bits differ."""
    limit = {torch.float32: 1e-5, torch.bfloat16: 6e-2}[expected.dtype]
    torch.testing.assert_close(stack.norm.after(rows.x, None, 1.0)[1], expected, rtol=limit, atol=limit)


def test_the_way_of_few_rows_computes_the_same_in_sequences(talker):
    stack = talker.feat_decoder.estimator.decoder
    x = draw(talker, 2, 7, stack.config.hidden_size)
    check(stack, stack.few_rows(x), stack(x))


def test_the_way_of_few_rows_computes_the_same_at_positions(talker):
    stack = talker.base_lm
    x, positions = draw(talker, 3, stack.config.hidden_size), torch.tensor([0, 9, 4])

    def attend(layer, q, k, v):
        return q * k.mean(-2, keepdim=True) + layer * v.mean(-2, keepdim=True)

    check(stack, stack.few_rows(x, positions, attend), stack(x, positions, attend))


def test_the_product_of_few_rows_is_that_of_a_norm_and_a_product(talker):
    stack, out = talker.feat_decoder.estimator.decoder, talker.feat_decoder.estimator.out_proj
    x = draw(talker, 2, 7, stack.config.hidden_size)
    got = ops.root_linear(stack.few_rows(x), stack.norm.eps, out.weight, out.bias)
    limit = {torch.float32: 1e-5, torch.bfloat16: 6e-2}[x.dtype]
    torch.testing.assert_close(got, out(stack(x)), rtol=limit, atol=limit)


@pytest.mark.parametrize("wanted", [slice(1), slice(-2, None), slice(None)], ids=str)
def test_wanted_rows_are_those_of_the_whole(talker, wanted):
    stack = talker.feat_decoder.estimator.decoder
    x = draw(talker, 2, 7, stack.config.hidden_size)
    assert torch.equal(stack(x, wanted=wanted), stack(x)[:, wanted])
