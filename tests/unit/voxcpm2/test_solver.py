"""The guided Euler solver, where upstream has nothing to compare with: rows of one batch with different step counts."""

from __future__ import annotations

import pytest
import torch

from triton_speech.families.voxcpm2.checkpoint import load_talker
from triton_speech.families.voxcpm2.locdit import FlowMatching, schedule
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
