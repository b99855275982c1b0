"""Drawing from logits, exactly as the algorithm says it."""

import pytest
import torch
from torch import Tensor

from triton_speech.families.noise import uniforms
from triton_speech.families.qwen3_tts.sampling import choose, penalise, sample

SETTINGS = [(-1, 0.8), (0, 1.0), (50, 0.8), (50, 0.01), (50, 1.0)]


def plain(logits: Tensor, chance: Tensor, top_k: int, top_p: float) -> Tensor:
    """The algorithm in its own words: thresholds, then the nucleus, then the Gumbel maximum."""
    if top_k > 0:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1:
        ranked, order = logits.sort(dim=-1, descending=True)
        share = ranked.softmax(dim=-1, dtype=torch.float32)
        ranked[(share.cumsum(-1) - share) >= top_p] = -torch.inf
        logits = torch.empty_like(ranked).scatter(1, order, ranked)
    return (logits.float() - torch.log(-torch.log(chance))).argmax(-1)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chances(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).clamp_min_(1e-7)


@pytest.mark.parametrize(("batch", "vocabulary"), [(1, 128), (7, 2048), (64, 2048)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("top_k", "top_p"), SETTINGS)
def test_draws_are_those_of_the_algorithm(
    batch: int, vocabulary: int, dtype: torch.dtype, top_k: int, top_p: float
) -> None:
    logits = draw(batch, vocabulary, seed=173).to(dtype)
    # One codebook's part of all that a frame needs, so not contiguous.
    chance = chances(batch, 15, vocabulary, seed=5)[:, 3]
    expected = plain(logits, chance, top_k, top_p)
    assert torch.equal(sample(logits, chance, top_k, top_p), expected)
    each = sample(logits, chance, torch.full((batch,), top_k), torch.full((batch,), top_p))
    assert torch.equal(each, expected)


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 0.5), (3, 1.0), (0, 0.8)])
def test_ties_infinities_and_nan_rows_are_drawn_as_the_algorithm_does(top_k: int, top_p: float) -> None:
    none = -torch.inf
    logits = torch.tensor(
        [[2, 2, 2, 2, 2, 1, 0, -1], [1] * 8, [none] * 8, [torch.nan, 1, 2, 3, 4, 5, 6, 7]], dtype=torch.float32
    )
    chance = torch.tensor([[0.4, 0.7, 0.8, 0.9, 0.2, 0.3, 0.6, 0.5]]).expand(4, -1)
    assert torch.equal(sample(logits, chance, top_k, top_p), plain(logits, chance, top_k, top_p))


def test_all_that_tie_with_the_last_of_top_k_may_be_drawn() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]])
    drawn = set()
    for place in range(5):
        chance = torch.full((1, 5), 0.01)
        chance[0, place] = 0.999
        drawn.add(int(sample(logits, chance, 2, 1.0)))
    assert drawn == {1, 2, 3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 19, 49, 1000, 2000])
@pytest.mark.parametrize("direction", [-torch.inf, torch.inf])
def test_the_nucleus_ends_at_the_same_token_next_to_its_boundary(
    dtype: torch.dtype, rank: int, direction: float
) -> None:
    logits = draw(1, 2048, seed=1923).to(dtype)
    ranked, order = logits.sort(descending=True)
    share = ranked.softmax(-1, dtype=torch.float32)
    boundary = (share.cumsum(-1) - share)[0, rank]
    chance = torch.full((1, 2048), 0.001)
    chance[0, order[0, rank]] = 1 - 1e-7
    top_p = torch.nextafter(boundary, boundary.new_tensor(direction)).item()
    assert torch.equal(sample(logits, chance, 0, top_p), plain(logits, chance, 0, top_p))


@pytest.mark.parametrize("top_p", [0.8, 1.0])
def test_strided_logits_and_an_odd_vocabulary(top_p: float) -> None:
    for seed in range(4):
        logits = draw(128, 2050, seed=seed)[:, ::2]
        chance = chances(128, 3, 1025, seed=seed)[:, 1]
        assert torch.equal(sample(logits, chance, -1, top_p), plain(logits, chance, -1, top_p))


def test_rows_with_settings_of_their_own_are_drawn_as_if_alone() -> None:
    logits, chance = draw(4, 256, seed=1), chances(4, 256, seed=2)
    settings = [(0, 1.0), (5, 0.5), (1, 1.0), (300, 0.9)]
    top_k, top_p = (torch.tensor(column) for column in zip(*settings, strict=True))
    alone = [plain(logits[[row]], chance[[row]], min(k, 256), p)[0] for row, (k, p) in enumerate(settings)]
    assert torch.equal(sample(logits, chance, top_k, top_p), torch.stack(alone))


def test_a_temperature_of_zero_takes_the_largest() -> None:
    logits, chance = draw(3, 64, seed=1), chances(3, 64, seed=2)
    drawn = choose(logits, chance, torch.tensor([0.0, 1.0, 0.0]), 0, 1.0)
    assert drawn[0] == logits[0].argmax()
    assert drawn[1] == plain(logits, chance, 0, 1.0)[1]
    assert drawn[2] == logits[2].argmax()


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(20_000, -1)
    frames = torch.arange(20_000)
    chance = uniforms(torch.full((20_000,), 7), frames, range(2, 3), 4)[:, 0]
    share = torch.bincount(sample(logits, chance, 0, 1.0), minlength=4) / 20_000
    assert torch.allclose(share, logits[0].softmax(-1), atol=0.01)


def test_a_penalty_makes_only_what_was_said_less_likely() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    seen = torch.tensor([[True, True, False]])
    assert penalise(logits, seen, torch.tensor([2.0])).tolist() == [[1.0, -4.0, 1.0]]


def test_uniforms_never_reach_their_ends() -> None:
    values = uniforms(torch.arange(64), torch.arange(64) * 1000, range(16), 2048)
    assert values.shape == (64, 16, 2048)
    assert values.min() > 0
    assert values.max() < 1
    assert torch.log(-torch.log(values)).isfinite().all()
    assert abs(values.mean().item() - 0.5) < 1e-3


def test_the_largest_uniform_is_below_one() -> None:
    assert torch.tensor([2**23 - 1]).to(torch.float32).add(0.5).mul(2.0**-23).item() < 1


def test_uniforms_of_a_stream_do_not_depend_on_its_company() -> None:
    seeds, frames = torch.tensor([3, -5, 2**62]), torch.tensor([0, 9, 4])
    together = uniforms(seeds, frames, range(16), 33)
    for row in range(3):
        assert torch.equal(uniforms(seeds[[row]], frames[[row]], range(4, 5), 33)[0, 0], together[row, 4])
    assert len(together.flatten().unique()) > 0.99 * together.numel()
