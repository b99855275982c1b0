"""Log mel spectra as the speaker encoder was trained on them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SAMPLE_RATE = 24000
WINDOW = 1024
HOP = 256
HIGHEST = 12000.0
FLOOR = 1e-5
_ENERGY_FLOOR = 1e-9
# Slaney's scale (Auditory Toolbox, 1998): linear up to 1 kHz, logarithmic above.
_LINEAR_STEP = 200.0 / 3
_BREAK = 1000.0
_LOG_STEP = math.log(6.4) / 27


def _to_mel(hertz: float) -> float:
    if hertz < _BREAK:
        return hertz / _LINEAR_STEP
    return _BREAK / _LINEAR_STEP + math.log(hertz / _BREAK) / _LOG_STEP


def _to_hertz(mel: Tensor) -> Tensor:
    bend = _BREAK / _LINEAR_STEP
    return torch.where(mel < bend, mel * _LINEAR_STEP, _BREAK * torch.exp(_LOG_STEP * (mel - bend)))


def filterbank(bands: int) -> Tensor:
    """Triangles of equal area (bands, WINDOW / 2 + 1) fp32, from 0 to ``HIGHEST`` Hz."""
    bins = torch.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)
    edges = _to_hertz(torch.linspace(0.0, _to_mel(HIGHEST), bands + 2, dtype=torch.float64))
    slopes = edges.unsqueeze(1) - bins
    widths = edges.diff().unsqueeze(1)
    rising, falling = -slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return (triangles * (2.0 / (edges[2:] - edges[:-2])).unsqueeze(1)).float()


def log_mel(audio: Tensor, bands: int) -> Tensor:
    """Audio (B, N) at 24 kHz, N > (WINDOW - HOP) / 2 -> (B, frames, bands) fp32."""
    edge = (WINDOW - HOP) // 2
    padded = F.pad(audio.unsqueeze(1), (edge, edge), mode="reflect").squeeze(1)
    window = torch.hann_window(WINDOW, device=audio.device)
    spectrum = torch.stft(
        padded, WINDOW, hop_length=HOP, win_length=WINDOW, window=window, center=False, return_complex=True
    )
    magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + _ENERGY_FLOOR)
    return torch.log((filterbank(bands).to(audio.device) @ magnitude).clamp(min=FLOOR)).transpose(1, 2)
