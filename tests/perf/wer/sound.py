"""Figures of a voice's sound: distance from the teacher's in mel spectra, and how much of it is harmonic."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triton_speech.families.voxcpm2.training.spectra import mel_filters

RATE = 24000
WINDOW, HOP, BANDS = 1024, 256, 80
HNR_WINDOW, HNR_HOP = 960, 240
PITCH_HERTZ = (70, 400)
VOICED = 0.5
"""Of a frame's normalised autocorrelation, above which it is voiced."""


def mel_distance(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Mean difference of log mel spectra in dB along the best alignment (dynamic time warping) of (N,) and (M,)."""
    left, right = mel_db(first), mel_db(second)
    cost = torch.cdist(left, right, p=1) / BANDS
    return _warp(cost.double().numpy())


def mel_db(samples: NDArray[np.float32]) -> Tensor:
    """(N,) at RATE -> (frames, bands) in dB, with the loudest at 0 and nothing below -60."""
    spectrum = torch.stft(
        torch.from_numpy(samples), WINDOW, HOP, window=torch.hann_window(WINDOW), return_complex=True
    ).abs()
    level = 20 * torch.log10((mel_filters(RATE, WINDOW, BANDS) @ spectrum).clamp(min=1e-5)).T
    return (level - level.max()).clamp(min=-60)


def _warp(cost: NDArray[np.float64]) -> float:
    """Mean cost along the cheapest path from corner to corner of (n, m)."""
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    steps = np.zeros((rows + 1, columns + 1))
    total[0, 0] = 0
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            before = min(
                (total[row - 1, column - 1], row - 1, column - 1),
                (total[row - 1, column], row - 1, column),
                (total[row, column - 1], row, column - 1),
            )
            total[row, column] = before[0] + cost[row - 1, column - 1]
            steps[row, column] = steps[before[1], before[2]] + 1
    return float(total[-1, -1] / steps[-1, -1])


def harmonic_to_noise(samples: NDArray[np.float32]) -> tuple[float, float]:
    """(N,) at RATE -> median harmonic-to-noise ratio in dB and median pitch in Hz of the voiced frames.

    The ratio is r / (1 - r) for the highest normalised autocorrelation r within the pitch range, the window's own
    autocorrelation divided out (Boersma, 1993). Not a number where nothing is voiced.
    """
    if len(samples) < HNR_WINDOW or not samples.any():
        return float("nan"), float("nan")
    frames = torch.from_numpy(samples).unfold(0, HNR_WINDOW, HNR_HOP)
    loud = frames.square().mean(1)
    frames = frames[loud > 0.05 * loud.max()]
    window = torch.hann_window(HNR_WINDOW)
    shape = _autocorrelation(window.unsqueeze(0))
    normal = _autocorrelation((frames - frames.mean(1, keepdim=True)) * window) / shape
    first, last = RATE // PITCH_HERTZ[1], RATE // PITCH_HERTZ[0]
    peak, lag = normal[:, first : last + 1].max(1)
    voiced = peak > VOICED
    if not voiced.any():
        return float("nan"), float("nan")
    peak = peak[voiced].clamp(max=1 - 1e-4)
    pitch = RATE / (lag[voiced] + first).float()
    return float((10 * torch.log10(peak / (1 - peak))).median()), float(pitch.median())


def _autocorrelation(frames: Tensor) -> Tensor:
    """(B, N) -> (B, N), 1 at lag 0."""
    power = torch.fft.rfft(frames, 2 * frames.shape[1]).abs().square()
    values = torch.fft.irfft(power)[:, : frames.shape[1]]
    return values / values[:, :1].clamp(min=1e-12)
