"""Judges of audio: by periods (HiFi-GAN, arXiv 2010.05646) and by complex spectra (as in EnCodec, arXiv 2210.13438)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .spectra import stft

PERIODS = (2, 3, 5, 7, 11)
WINDOWS = (512, 1024, 2048)
PERIOD_CHANNELS = (1, 16, 64, 128, 256)
SPECTRUM_CHANNELS = 32
SLOPE = 0.1

Verdict = tuple[Tensor, list[Tensor]]
"""Scores, and the features of every layer."""


class PeriodJudge(nn.Module):
    """Audio folded to a picture whose lines are ``period`` samples apart."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        pairs = pairwise(PERIOD_CHANNELS)
        layers = [nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)) for a, b in pairs]
        self.layers = nn.ModuleList([*layers, nn.Conv2d(PERIOD_CHANNELS[-1], PERIOD_CHANNELS[-1], (5, 1), 1, (2, 0))])
        self.last = nn.Conv2d(PERIOD_CHANNELS[-1], 1, (3, 1), 1, (1, 0))

    def forward(self, audio: Tensor) -> Verdict:
        """audio (B, N)."""
        padded = F.pad(audio.unsqueeze(1), (0, -audio.shape[1] % self.period), mode="reflect")
        return _through(padded.view(len(audio), 1, -1, self.period), self.layers, self.last)


class SpectrumJudge(nn.Module):
    """Real and imaginary part of a spectrum."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        size = SPECTRUM_CHANNELS
        strided = [nn.Conv2d(size, size, (3, 9), (1, 2), (1, 4)) for _ in range(3)]
        self.layers = nn.ModuleList(
            [nn.Conv2d(2, size, (3, 9), 1, (1, 4)), *strided, nn.Conv2d(size, size, (3, 3), 1, (1, 1))]
        )
        self.last = nn.Conv2d(size, 1, (3, 3), 1, (1, 1))

    def forward(self, audio: Tensor) -> Verdict:
        """audio (B, N)."""
        with torch.autocast(audio.device.type, enabled=False):
            parts = torch.view_as_real(stft(audio.float(), self.window))
            picture = parts.permute(0, 3, 2, 1) * (10 / math.sqrt(self.window))
        return _through(picture, self.layers, self.last)


class Judges(nn.Module):
    """All of them."""

    def __init__(self) -> None:
        super().__init__()
        by_spectrum = [SpectrumJudge(window) for window in WINDOWS]
        self.judges = nn.ModuleList([*(PeriodJudge(period) for period in PERIODS), *by_spectrum])

    def forward(self, audio: Tensor) -> list[Verdict]:
        return [judge(audio) for judge in self.judges]


def judges_loss(real: list[Verdict], made: list[Verdict]) -> Tensor:
    """Least squares: real is 1, made is 0."""
    losses = [
        (1 - r[0].float()).square().mean() + m[0].float().square().mean() for r, m in zip(real, made, strict=True)
    ]
    return torch.stack(losses).sum()


def made_loss(made: list[Verdict]) -> Tensor:
    """What the maker of audio wants: to be taken for real."""
    return torch.stack([(1 - scores.float()).square().mean() for scores, _ in made]).sum()


def feature_loss(real: list[Verdict], made: list[Verdict]) -> Tensor:
    """Mean difference of the features of every layer, summed."""
    differences = [
        (here.float() - there.float().detach()).abs().mean()
        for r, m in zip(real, made, strict=True)
        for there, here in zip(r[1], m[1], strict=True)
    ]
    return torch.stack(differences).sum()


def _through(x: Tensor, layers: nn.ModuleList, last: nn.Module) -> Verdict:
    features = []
    for layer in layers:
        x = F.leaky_relu(layer(x), SLOPE)
        features.append(x)
    return last(x), features
