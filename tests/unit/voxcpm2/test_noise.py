"""Counter-based noise: normal, independent of company, and never different from what it was."""

import math

import pytest
import torch

from triton_speech.families.voxcpm2.noise import gaussian

LANES = 256
# Streams are reproducible by their seed for as long as these hold. (seed, frame) -> lanes 0 to 3 of four.
PINNED = {
    (0, 0): [-0.033722, 0.103760, 1.828010, -0.001897],
    (0, 1): [0.718738, -1.440540, 0.568641, -0.252017],
    (1, 0): [0.377100, -1.569093, 1.493112, 0.496045],
    (-1, 29): [0.833659, 0.646725, -0.157070, -1.494431],
    (2**63 - 1, 1000): [0.939142, 0.216272, -1.924650, 0.868854],
    (123456789012345678, 7): [-0.997076, -0.394792, -0.534313, 0.239960],
}


def draw(seed: int, frame: int, lanes: int = LANES) -> torch.Tensor:
    return gaussian(torch.tensor([seed]), torch.tensor([frame]), lanes)[0]


@pytest.fixture(scope="module")
def sample() -> torch.Tensor:
    """Lanes of 64 frames of each of 64 seeds: (4096, LANES)."""
    seeds, frames = torch.arange(64).repeat_interleave(64), torch.arange(64).repeat(64)
    return gaussian(seeds, frames, LANES)


@pytest.mark.parametrize(("key", "values"), PINNED.items())
def test_known_values(key: tuple[int, int], values: list[float]) -> None:
    torch.testing.assert_close(draw(*key, lanes=4), torch.tensor(values), rtol=0, atol=2e-6)


def test_it_is_standard_normal(sample: torch.Tensor) -> None:
    """Moments to four, and the share beyond one, two and three deviations, within five standard errors."""
    n = sample.numel()
    wide = sample.double()
    assert abs(wide.mean()) < 5 / math.sqrt(n)
    assert abs(wide.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((wide**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((wide**4).mean() - 3) < 5 * math.sqrt(96 / n)
    for bound in (1, 2, 3):
        share = math.erfc(bound / math.sqrt(2))
        found = (wide.abs() > bound).double().mean().item()
        assert abs(found - share) < 5 * math.sqrt(share * (1 - share) / n), bound


def test_it_has_tails_but_no_infinity(sample: torch.Tensor) -> None:
    assert sample.isfinite().all()
    assert 4.3 < sample.abs().max() < 6


@pytest.mark.parametrize("dim", [0, 1], ids=["seeds and frames", "lanes"])
def test_rows_do_not_correlate(sample: torch.Tensor, dim: int) -> None:
    """No pair of 256 rows correlates more than chance makes the largest of 32,640 pairs do."""
    rows = (sample if dim == 0 else sample.T.reshape(LANES, -1))[:LANES].double()
    correlation = torch.corrcoef(rows) - torch.eye(LANES)
    assert correlation.abs().max() < 6 / math.sqrt(rows.shape[1])


def test_neighbours_do_not_correlate(sample: torch.Tensor) -> None:
    grid = sample.view(64, 64, LANES).double()
    for pairs in (grid[1:] * grid[:-1], grid[:, 1:] * grid[:, :-1], grid[..., 1:] * grid[..., :-1]):
        assert abs(pairs.mean()) < 5 / math.sqrt(pairs.numel())


def test_a_row_does_not_depend_on_its_batch() -> None:
    seeds, frames = torch.tensor([3, -9, 3, 2**62]), torch.tensor([0, 5, 6, 100])
    together = gaussian(seeds, frames, LANES)
    for row in range(len(seeds)):
        torch.testing.assert_close(together[row], draw(int(seeds[row]), int(frames[row])), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, 0), (1, 0)),
        ((0, 0), (0, 1)),
        ((1, 0), (0, 1)),
        ((0, 0), (2**32, 0)),
        ((0, 0), (-1, 0)),
        ((-1, 0), (2**32 - 1, 0)),
        ((5, 7), (7, 5)),
        ((-(2**63), 0), (0, 0)),
        ((2**63 - 1, 0), (-1, 0)),
    ],
)
def test_other_seeds_and_frames_give_other_noise(one: tuple[int, int], other: tuple[int, int]) -> None:
    first, second = draw(*one), draw(*other)
    assert (first == second).float().mean() < 0.02
    assert abs(torch.corrcoef(torch.stack((first, second)))[0, 1]) < 0.3


def test_a_frame_of_a_seed_is_not_a_shifted_frame_of_another() -> None:
    """Seeds and frames are both counted by one: noise of (seed + k, frame - k) must not come back."""
    rows = torch.stack([draw(seed, frame) for seed in range(12) for frame in range(12)])
    assert len(torch.unique(rows, dim=0)) == len(rows)
    assert len(torch.unique(rows)) > 0.99 * rows.numel()


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1])
def test_all_64_bits_make_a_seed(seed: int) -> None:
    noise = draw(seed, 3, lanes=4096)
    assert noise.dtype == torch.float32
    assert abs(noise.mean()) < 0.1
    assert abs(noise.std() - 1) < 0.1
