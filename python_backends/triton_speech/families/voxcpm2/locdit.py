"""The local diffusion transformer and its guided Euler solver: LM state in, one patch of latents out."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import ops
from .config import StackConfig
from .minicpm import MiniCPM

ZERO_INIT_SHARE = 0.04
"""Share of the solver's points whose velocity is taken as zero (CFG-Zero*, arXiv 2503.18886)."""
GUIDANCE_EPS = 1e-8


class TimeMLP(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(size, size)
        self.linear_2 = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


def sinusoidal(t: Tensor, size: int) -> Tensor:
    """Times t (K,) in [0, 1] -> (K, size): sines, then cosines, of 1000 t at geometric frequencies."""
    half = size // 2
    rates = torch.exp(torch.arange(half, device=t.device, dtype=t.dtype) * -(math.log(10000) / (half - 1)))
    angles = 1000 * t.unsqueeze(1) * rates
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def guided_rounds(steps: int, cutoff_ratio: float) -> int:
    """How many of the solver's evaluated rounds are guided: those up to this share of its points, and at least one.

    Guidance shapes the first rounds most; what follows costs half without its second branch (nanovllm-voxcpm's
    ``cfg_cutoff_ratio``, seed 000).
    """
    skipped = _skipped(steps)
    return min(steps - skipped, max(1, int((steps + 1) * cutoff_ratio) - skipped))


def _skipped(steps: int) -> int:
    return max(1, int((steps + 1) * ZERO_INIT_SHARE))


def schedule(steps: int) -> tuple[list[float], list[float]]:
    """Times and step widths of the solver that are evaluated.

    Time runs from 1 to 0, bent by sway sampling ``t + cos(pi t / 2) - 1 + t`` (F5-TTS, arXiv 2410.06885); the first
    ``max(1, 4 %)`` of the steps are left out, for their velocity is zero.
    """
    t = torch.linspace(1, 0, steps + 1, dtype=torch.float32, device="cpu")
    points = t + (torch.cos(torch.pi / 2 * t) - 1 + t)
    skipped = _skipped(steps)
    times, widths = [], []
    now, width = points[0], points[0] - points[1]
    for step in range(1, len(points)):
        if step > skipped:
            times.append(now.item())
            widths.append(width.item())
        now = now - width
        if step < steps:
            width = now - points[step + 1]
    return times, widths


def padded_schedules(most: int) -> tuple[Tensor, Tensor]:
    """Times and widths (most + 1, R) fp32 of every step count up to ``most``, whose rounds are R.

    Smaller counts end with rounds of width 0, which change nothing.
    """
    schedules = [schedule(steps) if steps > 1 else ([], []) for steps in range(most + 1)]
    rounds = len(schedules[most][0])
    times, widths = (
        torch.tensor([values + [0.0] * (rounds - len(values)) for values in column], dtype=torch.float32)
        for column in zip(*schedules, strict=True)
    )
    return times, widths


def guided_table(most: int, cutoff_ratio: float) -> Tensor:
    """Whether each round is guided (R, most + 1), for every step count up to ``most``."""
    guided = torch.tensor([guided_rounds(steps, cutoff_ratio) if steps > 1 else 0 for steps in range(most + 1)])
    return torch.arange(len(schedule(most)[0]))[:, None] < guided


class LocDiT(nn.Module):
    """Velocity of one patch. Sequence: LM state as ``2h / h`` tokens, time, previous patch, noisy patch."""

    def __init__(self, config: StackConfig, *, feat_dim: int, patch_size: int, mu_tokens: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.in_proj = nn.Linear(feat_dim, size)
        self.cond_proj = nn.Linear(feat_dim, size)
        self.out_proj = nn.Linear(size, feat_dim)
        self.time_mlp = TimeMLP(size)
        self.delta_time_mlp = TimeMLP(size)
        self.decoder = MiniCPM(config, length=mu_tokens + 1 + 2 * patch_size)
        self.size, self.patch_size, self.mu_tokens = size, patch_size, mu_tokens

    def embed_time(self, times: Tensor, widths: Tensor) -> Tensor:
        """Times and widths (K,) fp32 -> (K, h). Widths are zero unless the model predicts mean velocities."""
        dtype = self.in_proj.weight.dtype
        return self.time_mlp(sinusoidal(times, self.size).to(dtype)) + self.delta_time_mlp(
            sinusoidal(widths, self.size).to(dtype)
        )

    def forward(self, x: Tensor, mu: Tensor, time: Tensor, cond: Tensor) -> Tensor:
        """x (B, P, D), mu (B, M, h), time (B, 1, h), cond (B, P, h) already projected -> velocity (B, P, D)."""
        return self.velocity(torch.cat((mu, time, cond, self.in_proj(x)), dim=1))

    def velocity(self, sequence: Tensor) -> Tensor:
        """The whole sequence (B, T, h) -> velocity (B, P, D)."""
        patch = slice(-self.patch_size, None)
        if self.decoder.takes_few_rows(sequence):
            rows, out = self.decoder.few_rows(sequence), self.out_proj
            return ops.root_linear(rows, self.decoder.norm.eps, out.weight, out.bias)[:, patch]
        return self.out_proj(self.decoder(sequence, wanted=patch))

    def lay_out(self, mu: Tensor, cond: Tensor) -> Tensor:
        """mu (B, M h) and projected cond (B, P, h) -> sequences (2 B, T, h) with and without mu, as yet without time
        and noisy patch, which ``place`` writes."""
        tokens = mu.view(len(mu), self.mu_tokens, self.size)
        time, patch = cond.new_zeros(len(mu), 1, self.size), torch.zeros_like(cond)
        with_mu = torch.cat((tokens, time, cond, patch), dim=1)
        return torch.cat((with_mu, torch.cat((torch.zeros_like(tokens), time, cond, patch), dim=1)))

    def place(self, sequence: Tensor, x: Tensor, time: Tensor) -> None:
        """Writes the time (B, h) and the noisy patch x (B, P, D) into each branch of sequence (2 B or B, T, h)."""
        if (kernels := ops.tail_kernels(x)) is not None:
            kernels.solver_step(x, None, (sequence, time, self.mu_tokens, self.in_proj.weight, self.in_proj.bias))
            return
        branches = len(sequence) // len(x)
        sequence[:, self.mu_tokens] = time.repeat(branches, 1)
        sequence[:, -self.patch_size :] = self.in_proj(x.repeat(branches, 1, 1))

    def advance(
        self, sequence: Tensor, velocity: Tensor, x: Tensor, guidance: Tensor, width: Tensor, time: Tensor | None
    ) -> Tensor:
        """The next x after velocity (2 B or B, P, D), guidance and widths (B,); placed where there is a next time."""
        if (kernels := ops.tail_kernels(x)) is not None:
            place = None if time is None else (sequence, time, self.mu_tokens, self.in_proj.weight, self.in_proj.bias)
            return kernels.solver_step(x, (velocity, guidance, width, GUIDANCE_EPS), place)
        x = guided_step(velocity, x, guidance, width)
        if time is not None:
            self.place(sequence, x, time)
        return x


def guided_step(velocity: Tensor, x: Tensor, guidance: Tensor, width: Tensor) -> Tensor:
    """Euler step of x (B, P, D) by velocity (2 B, P, D), conditioned before free, guidance and width (B,) fp32.

    Velocity (B, P, D) is conditioned alone and is taken as it is.
    The free velocity n is scaled to the conditioned one p by ``s = <p, n> / (|n|^2 + 1e-8)`` before guidance
    (CFG-Zero*, arXiv 2503.18886).
    """
    if velocity.shape[0] == x.shape[0]:
        return x - (width[:, None, None] * velocity.float()).to(x.dtype)
    # Not chunk(): an export would take its count for the batch.
    conditioned, free = velocity.flatten(1).float().view(2, x.shape[0], -1).unbind()
    scale = (conditioned * free).sum(1, keepdim=True) / (free.square().sum(1, keepdim=True) + GUIDANCE_EPS)
    free = free * scale
    guided = free + guidance[:, None] * (conditioned - free)
    return x - (width[:, None] * guided).view_as(x).to(x.dtype)


class FlowMatching(nn.Module):
    """Euler integration with classifier-free guidance; both branches run as one batch.

    Attributes:
        cutoff_ratio: share of the solver's points up to which rounds are guided; all of them by default.
    """

    cutoff_ratio = 1.0

    def __init__(self, estimator: LocDiT, *, mean_mode: bool) -> None:
        super().__init__()
        self.estimator = estimator
        self.mean_mode = mean_mode
        self._tables: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def tables(self, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Embedded times (most + 1, R, h), widths (most + 1, R) and guided (R, most + 1) of every count up to ``most``.

        R is the number of rounds of the largest count; smaller ones end with rounds of width 0, which change nothing.
        Computed once for each ``most``: a CUDA graph must find them ready.
        """
        if most not in self._tables:
            device = self.estimator.in_proj.weight.device
            times, widths = (table.to(device) for table in padded_schedules(most))
            delta = widths if self.mean_mode else torch.zeros_like(widths)
            embedded = self.estimator.embed_time(times.flatten(), delta.flatten())
            rounds = times.shape[1]
            is_guided = guided_table(most, self.cutoff_ratio).to(device)
            self._tables[most] = embedded.view(most + 1, rounds, -1), widths, is_guided
        return self._tables[most]

    def solve(self, noise: Tensor, mu: Tensor, cond: Tensor, cfg_value: Tensor, steps: Tensor, most: int) -> Tensor:
        """noise (B, P, D), mu (B, 2h), cond (B, P, D), cfg_value (B,), steps (B,) -> latents (B, P, D).

        ``most`` is at least every row's step count and sets the number of rounds. The branch without conditioning has
        mu = 0.
        """
        embedded, widths, is_guided = self.tables(most)
        times, row_widths = embedded[steps], widths[steps]
        rounds = times.shape[1]
        # With guidance 1 the free branch has no say.
        guidance = torch.where(is_guided[:, steps], cfg_value.float(), 1.0)
        with_both = guided_rounds(most, self.cutoff_ratio)
        sequence = self.estimator.lay_out(mu, ops.linear(cond, self.estimator.cond_proj))
        x = noise
        self.estimator.place(sequence, x, times[:, 0])
        for index in range(rounds):
            if index == with_both:
                sequence = sequence[: len(x)]
            velocity = self.estimator.velocity(sequence)
            following = times[:, index + 1] if index + 1 < rounds else None
            x = self.estimator.advance(sequence, velocity, x, guidance[index], row_widths[:, index], following)
        return x
