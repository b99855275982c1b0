"""The guided Euler solver, where upstream has nothing to compare with: rows of one batch with different step counts."""

from __future__ import annotations

import pytest
import torch

from triton_speech.families.voxcpm2.checkpoint import load_talker
from triton_speech.families.voxcpm2.locdit import FlowMatching, guided_rounds, schedule
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> FlowMatching:
    return load_talker(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))).feat_decoder


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_rows_with_different_step_counts_get_what_they_get_alone(solver):
    counts = torch.tensor([2, 10, 5, 50])
    noise, mu, cond, cfg = draw(4, 2, 8), draw(4, 64), draw(4, 2, 8), torch.tensor([1.0, 2.0, 3.0, 1.5])
    together = solver.solve(noise, mu, cond, cfg, counts, most=50)
    for row, count in enumerate(counts.tolist()):
        one = slice(row, row + 1)
        alone = solver.solve(noise[one], mu[one], cond[one], cfg[one], counts[one], most=count)
        assert (together[one] - alone).abs().max() < 1e-5, count


def test_rounds_beyond_a_rows_own_change_nothing(solver):
    noise, mu, cond, cfg = draw(1, 2, 8), draw(1, 64), draw(1, 2, 8), torch.tensor([2.0])
    steps = torch.tensor([4])
    assert torch.equal(solver.solve(noise, mu, cond, cfg, steps, 4), solver.solve(noise, mu, cond, cfg, steps, 20))


@pytest.mark.parametrize("steps", [2, 10, 49, 100])
def test_time_runs_from_the_first_evaluated_point_to_zero(steps):
    times, widths = schedule(steps)
    assert len(times) == steps - max(1, int((steps + 1) * 0.04))
    assert times == sorted(times, reverse=True)
    assert abs(times[-1] - widths[-1]) < 1e-5


@pytest.fixture
def halved(solver, monkeypatch) -> FlowMatching:
    monkeypatch.setattr(solver, "cutoff_ratio", 0.5)
    monkeypatch.setattr(solver, "_tables", {})
    return solver


def test_rounds_after_the_cutoff_are_not_guided(halved):
    noise, mu, cond = draw(3, 2, 8), draw(3, 64), draw(3, 2, 8)
    counts = torch.tensor([10, 10, 10])
    seen = []
    velocity = halved.estimator.velocity
    halved.estimator.velocity = lambda sequence: seen.append(len(sequence)) or velocity(sequence)
    try:
        fresh = halved.solve(noise, mu, cond, torch.tensor([1.0, 2.0, 2.0]), counts, most=10)
    finally:
        del halved.estimator.velocity
    # Of the eleven points the first is skipped, and half are five.
    assert seen == [6] * 4 + [3] * 5
    halved.cutoff_ratio, halved._tables = 1.0, {}
    whole = halved.solve(noise, mu, cond, torch.tensor([1.0, 2.0, 2.0]), counts, most=10)
    difference = (fresh - whole).abs().amax(dim=(1, 2))
    assert difference[0] < 1e-5
    assert (difference[1:] > 1e-4).all()


def test_each_row_has_its_own_cutoff(halved):
    counts = torch.tensor([2, 10, 5, 50])
    noise, mu, cond, cfg = draw(4, 2, 8), draw(4, 64), draw(4, 2, 8), torch.tensor([1.0, 2.0, 3.0, 1.5])
    together = halved.solve(noise, mu, cond, cfg, counts, most=50)
    for row, count in enumerate(counts.tolist()):
        one = slice(row, row + 1)
        alone = halved.solve(noise[one], mu[one], cond[one], cfg[one], counts[one], most=count)
        assert (together[one] - alone).abs().max() < 1e-5, count


@pytest.mark.parametrize(
    ("ratio", "steps", "guided"), [(1.0, 10, 9), (0.5, 10, 4), (0.01, 10, 1), (0.5, 2, 1), (1.0, 100, 96)]
)
def test_guided_rounds_are_a_share_of_the_points(ratio, steps, guided):
    assert guided_rounds(steps, ratio) == guided
    assert guided_rounds(steps, 1.0) == len(schedule(steps)[0])
