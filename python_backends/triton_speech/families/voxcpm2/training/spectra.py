"""How far made audio is from real audio, by spectra of several resolutions; differentiable."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

MEL_SCALES = ((64, 5), (128, 10), (256, 20), (512, 40), (1024, 80), (2048, 120))
"""Window in samples and number of bands (as in DAC, arXiv 2306.06546, without its smallest)."""
LINEAR_WINDOWS = (512, 1024, 2048)
FLOOR = 1e-5
LINEAR_FLOOR = 1e-3
# Slaney's scale (Auditory Toolbox, 1998): linear up to 1 kHz, logarithmic above.
_STEP = 200.0 / 3
_BREAK = 15.0
_LOG_STEP = math.log(6.4) / 27


def mel_filters(rate: int, window: int, bands: int) -> Tensor:
    """Triangles of equal area on Slaney's scale (bands, window / 2 + 1) fp32, from 0 to half of ``rate`` Hz."""
    top = rate / 2
    highest = _BREAK + math.log(top / (_BREAK * _STEP)) / _LOG_STEP
    mels = torch.linspace(0.0, highest, bands + 2, dtype=torch.float64)
    edges = torch.where(mels < _BREAK, mels * _STEP, _BREAK * _STEP * torch.exp(_LOG_STEP * (mels - _BREAK)))
    slopes = edges.unsqueeze(1) - torch.linspace(0, top, window // 2 + 1, dtype=torch.float64)
    widths = edges.diff().unsqueeze(1)
    triangles = torch.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]).clamp(min=0)
    return (triangles * (2.0 / (edges[2:] - edges[:-2])).unsqueeze(1)).float()


def stft(audio: Tensor, window: int) -> Tensor:
    """Audio (B, N) fp32 -> complex (B, window / 2 + 1, frames), a quarter of a window apart."""
    return torch.stft(audio, window, window // 4, window=_hann(window, audio.device), return_complex=True)


def mel_loss(made: Tensor, real: Tensor, rate: int) -> Tensor:
    """Sum over MEL_SCALES of the mean difference of log10 mel magnitudes; both (B, N) fp32 at ``rate`` Hz."""
    total = made.new_zeros(())
    for window, bands in MEL_SCALES:
        filters = _filters(rate, window, bands, made.device)
        # The root's gradient has no bound at 0.
        here = filters @ stft(made, window).abs().square().clamp(min=FLOOR**2).sqrt()
        there = filters @ stft(real, window).abs()
        total = total + _log_difference(here, there, FLOOR)
    return total


def linear_loss(made: Tensor, real: Tensor) -> Tensor:
    """Of linear spectra, which resolve the harmonics that mel bands blur: log difference and spectral convergence."""
    total = made.new_zeros(())
    for window in LINEAR_WINDOWS:
        here = stft(made, window).abs().square().clamp(min=FLOOR**2).sqrt()
        there = stft(real, window).abs()
        convergence = (here - there).norm() / there.norm().clamp(min=LINEAR_FLOOR)
        total = total + _log_difference(here, there, LINEAR_FLOOR) + 0.5 * convergence
    return total


def _log_difference(here: Tensor, there: Tensor, floor: float) -> Tensor:
    return (here.clamp(min=floor).log10() - there.clamp(min=floor).log10()).abs().mean()


@cache
def _hann(window: int, device: torch.device) -> Tensor:
    return torch.hann_window(window, device=device)


@cache
def _filters(rate: int, window: int, bands: int, device: torch.device) -> Tensor:
    return mel_filters(rate, window, bands).to(device)
