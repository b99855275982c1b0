"""Several speakers out of one: the teacher's speech with another pitch, other formants and another rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

SAMPLE_RATE = 24000
"""Hz of all speech that is made."""
WINDOW, HOP = 1024, 256
ENVELOPE_QUEFRENCIES = 60
"""Of the cepstrum at 24 kHz: an envelope that does not follow the harmonics of a voice up to 400 Hz."""
MOST_GAIN = 10.0
"""To either side, as amplitude: what a moved envelope may ask of a frequency where there is nothing."""


@dataclass(frozen=True)
class Speaker:
    """Factors on the teacher's own voice; 1, 1, 1 is the teacher."""

    name: str
    pitch: float = 1.0
    formants: float = 1.0
    rate: float = 1.0

    @property
    def length_scale(self) -> float:
        """How much slower the teacher must speak: raising the pitch makes speech shorter by as much."""
        return self.pitch / self.rate


SPEAKERS = (
    Speaker("joe"),
    Speaker("bruno", 0.78, 0.90, 0.94),
    Speaker("otto", 0.92, 0.80, 0.88),
    Speaker("felix", 1.12, 1.14, 1.10),
    Speaker("nora", 1.45, 1.04, 0.96),
    Speaker("mia", 1.62, 1.18, 1.08),
    Speaker("ida", 1.85, 1.06, 0.90),
    Speaker("pip", 2.05, 1.32, 1.02),
)
"""The first is what a voice speaks in without a recording."""


def speak_as(speaker: Speaker, samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """The teacher's samples (N,) at ``rate`` Hz, said with ``speaker.length_scale`` -> (M,) at SAMPLE_RATE.

    Played faster by ``pitch``, which moves the formants as well; these are put where they belong by filtering with the
    ratio of the moved spectral envelope to the one that is there.
    """
    played = soxr.resample(samples, rate * speaker.pitch, SAMPLE_RATE)
    if speaker.formants == speaker.pitch or len(played) < WINDOW:
        return played
    return move_formants(torch.from_numpy(played), speaker.formants / speaker.pitch).numpy()


def move_formants(samples: Tensor, factor: float) -> Tensor:
    """samples (N,) with N >= WINDOW at SAMPLE_RATE: the envelope at f comes to ``factor`` f; the pitch stays."""
    window = torch.hann_window(WINDOW)
    spectrum = torch.stft(samples, WINDOW, HOP, window=window, return_complex=True)
    envelope = _log_envelope(spectrum.abs())
    bins = torch.arange(envelope.shape[0], dtype=torch.float32) / factor
    lower = bins.floor().clamp(max=envelope.shape[0] - 2).long()
    share = (bins - lower).clamp(max=1.0).unsqueeze(1)
    moved = envelope[lower] * (1 - share) + envelope[lower + 1] * share
    gain = torch.exp(moved - envelope).clamp(1 / MOST_GAIN, MOST_GAIN)
    return torch.istft(spectrum * gain, WINDOW, HOP, window=window, length=len(samples))


def _log_envelope(magnitude: Tensor) -> Tensor:
    """Magnitudes (bins, frames) -> logarithm of the envelope (bins, frames): the cepstrum's slow part."""
    cepstrum = torch.fft.irfft(torch.log(magnitude.clamp(min=1e-5)), dim=0)
    kept = torch.zeros(cepstrum.shape[0], 1)
    kept[:ENVELOPE_QUEFRENCIES] = 1
    kept[-ENVELOPE_QUEFRENCIES + 1 :] = 1
    return torch.fft.rfft(cepstrum * kept, dim=0).real
