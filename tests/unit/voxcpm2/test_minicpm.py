"""One stack, two ways through it: what each engine and number of rows gets is the same."""

from __future__ import annotations

import pytest
import torch

from triton_speech.families.voxcpm2.checkpoint import load_talker
from triton_speech.families.voxcpm2.model import VoxCPM2Talker
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def talker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VoxCPM2Talker:
    return load_talker(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), dtype=request.param))


def draw(talker: VoxCPM2Talker, *shape: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=source).to(talker.stop_head.weight.dtype)


def test_the_way_of_few_rows_computes_the_same_in_sequences(talker):
    stack = talker.feat_decoder.estimator.decoder
    x = draw(talker, 2, 7, stack.config.hidden_size)
    assert torch.equal(stack.norm.after(stack.few_rows(x), None, 1.0)[1], stack(x))


def test_the_way_of_few_rows_computes_the_same_at_positions(talker):
    stack = talker.base_lm
    x, positions = draw(talker, 3, stack.config.hidden_size), torch.tensor([0, 9, 4])

    def attend(layer, q, k, v):
        return q * k.mean(-2, keepdim=True) + layer * v.mean(-2, keepdim=True)

    few = stack.few_rows(x, positions, attend)
    assert torch.equal(stack.norm.after(few, None, 1.0)[1], stack(x, positions, attend))


@pytest.mark.parametrize("wanted", [slice(1), slice(-2, None), slice(None)], ids=str)
def test_wanted_rows_are_those_of_the_whole(talker, wanted):
    stack = talker.feat_decoder.estimator.decoder
    x = draw(talker, 2, 7, stack.config.hidden_size)
    assert torch.equal(stack(x, wanted=wanted), stack(x)[:, wanted])
