"""DPM-Solver++ of second order (arXiv 2211.01095), as factors: each step is a sum of three known terms.

With alpha and sigma of a step's noise level, x the noisy latent and v the predicted velocity, the clean latent is
told as m = alpha x - sigma v, and the next x is a x + b m + c m', where m' is the m of the step before.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import HeadConfig
from .diffusion_head import DiffusionHead, guided

MOST_STEPS = 100
TIME, ALPHA, SIGMA, KEEP, NEW, OLD = range(6)
_LARGEST_BETA = 0.999


class Solver:
    """Tables for every count of steps up to ``MOST_STEPS``, so that streams with different counts share a batch."""

    def __init__(self, config: HeadConfig, device: torch.device | str = "cpu") -> None:
        levels = _noise_levels(config.ddpm_num_steps)
        # A count's steps are followed by ones that change nothing.
        nothing = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
        table = nothing.repeat(MOST_STEPS + 1, MOST_STEPS, 1)
        for count in range(1, MOST_STEPS + 1):
            table[count, :count] = _factors(levels, count)
        self.table = table.float().to(device)

    def sample(
        self, head: DiffusionHead, conditions: Tensor, noise: Tensor, scale: Tensor, counts: Tensor, most: int
    ) -> Tensor:
        """Latents (B, D) from noise, in fp32 between steps. The host waits for nothing, shapes depend on B alone.

        Args:
            conditions: (2 B, H), those of the streams and after them those of their negative streams.
            noise: (B, D) fp32.
            scale: (B,) of guidance.
            counts: (B,) int64, steps of each stream, 1 to ``MOST_STEPS``.
            most: at least ``max(counts)``.
        """
        factors = self.table[counts]
        projected = head.cond_proj(conditions)
        latents, before = noise, torch.zeros_like(noise)
        for step in range(most):
            now = factors[:, step].unsqueeze(-1)
            twice = torch.cat((latents, latents)).to(projected.dtype)
            velocity = head.velocity(twice, now[:, TIME, 0].repeat(2), projected)
            conditional, unconditional = velocity.chunk(2)
            clean = now[:, ALPHA] * latents - now[:, SIGMA] * guided(conditional, unconditional, scale).float()
            latents = now[:, KEEP] * latents + now[:, NEW] * clean + now[:, OLD] * before
            before = clean
        return latents


def _noise_levels(count: int) -> Tensor:
    """sigma / alpha of each of the training's levels (count,) fp64, of the cosine schedule (arXiv 2102.09672)."""

    def kept(part: float) -> float:
        return math.cos((part + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [min(1 - kept((i + 1) / count) / kept(i / count), _LARGEST_BETA) for i in range(count)]
    # In fp32 as upstream has it: the last levels are so small that rounding moves them.
    remaining = torch.cumprod(1 - torch.tensor(betas, dtype=torch.float32), dim=0)
    return (((1 - remaining) / remaining) ** 0.5).double()


def _factors(levels: Tensor, count: int) -> Tensor:
    """(count, 6) fp64: the level's number, alpha, sigma, and the factors of x, m and m'."""
    # Evenly spaced from the last level down to, but without, level 0; half a level is rounded to even.
    times = torch.linspace(0, len(levels) - 1, count + 1, dtype=torch.float64).round().flip(0)[:-1]
    ratios = torch.cat((levels[times.long()], torch.zeros(1, dtype=torch.float64)))
    alpha = (1 + ratios**2) ** -0.5
    sigma = ratios * alpha
    # Half the logarithm of the signal-to-noise ratio; endless at the end, where all noise is gone.
    snr = alpha.log() - sigma.log()
    rows = []
    for i in range(count):
        step = snr[i + 1] - snr[i]
        keep, new = sigma[i + 1] / sigma[i], alpha[i + 1] * (1 - torch.exp(-step))
        # The first step has no other before it, and the last one would divide by its endless length.
        bend = new * step / (snr[i] - snr[i - 1]) / 2 if 0 < i < count - 1 else torch.zeros((), dtype=torch.float64)
        rows.append(torch.stack((times[i], alpha[i], sigma[i], keep, new + bend, -bend)))
    return torch.stack(rows)
