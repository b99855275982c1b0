"""How alike two voices sound: the GE2E speaker encoder that the package ``resemblyzer`` ships, without its code.

The package itself cannot be imported where its dependencies are of this decade, and one of them breaks an environment;
it is installed with ``--no-deps`` and its weights are read. Architecture and features: arXiv 1710.10467 and
``resemblyzer/hparams.py``. Where it is not installed, pitch and the mean spectral envelope stand in.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import soxr
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from triton_speech.families.voxcpm2.training.spectra import mel_filters

from .sound import RATE, harmonic_to_noise, mel_db

ENCODER_RATE, WINDOW, HOP, BANDS = 16000, 400, 160, 40
FRAMES, STEP = 160, 80
LEVEL_DBFS = -30.0


class Likeness:
    """Turns a voice into a direction; two of them are alike by their cosine."""

    def __init__(self) -> None:
        weights = _weights()
        self.method = "pitch and spectral envelope" if weights is None else "GE2E (resemblyzer)"
        self._net = None if weights is None else _load(weights)

    @torch.inference_mode()
    def embed(self, samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
        """Samples (N,) at ``rate`` Hz -> a vector of length 1."""
        if self._net is None:
            return _plain(soxr.resample(samples, rate, RATE))
        heard = torch.from_numpy(soxr.resample(samples, rate, ENCODER_RATE))
        level = 10 ** (LEVEL_DBFS / 20)
        heard = heard * max(1.0, level / float(heard.square().mean().sqrt().clamp(min=1e-6)))
        mel = _mel(F.pad(heard, (0, max(0, FRAMES * HOP - len(heard)))))
        starts = range(0, max(1, mel.shape[0] - FRAMES + 1), STEP)
        return F.normalize(self._net(torch.stack([mel[s : s + FRAMES] for s in starts])).mean(0), dim=0).numpy()


class _Ge2e(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(BANDS, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mel: Tensor) -> Tensor:
        """(B, FRAMES, BANDS) -> (B, 256)."""
        last = self.lstm(mel)[1][0][-1]
        return F.normalize(torch.relu(self.linear(last)), dim=1)


def _weights() -> Path | None:
    spec = importlib.util.find_spec("resemblyzer")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("pretrained.pt")


def _load(path: Path) -> _Ge2e:
    state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    net = _Ge2e()
    net.load_state_dict({name: t for name, t in state.items() if name.partition(".")[0] in ("lstm", "linear")})
    return net.eval()


def _mel(samples: Tensor) -> Tensor:
    """(N,) at 16 kHz -> power mel spectra (frames, bands)."""
    spectrum = torch.stft(
        samples, WINDOW, HOP, window=torch.hann_window(WINDOW), pad_mode="constant", return_complex=True
    )
    return (mel_filters(ENCODER_RATE, WINDOW, BANDS) @ spectrum.abs().square()).T


def _plain(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean envelope's shape in loud frames, and the pitch in octaves, weighted so that both count."""
    level = mel_db(samples)
    envelope = level[level.mean(1) > level.mean(1).median()].mean(0)
    shape = F.normalize(envelope - envelope.mean(), dim=0)
    pitch = harmonic_to_noise(samples)[1]
    angle = torch.tensor(np.log2(max(pitch, 50.0) / 100.0) if np.isfinite(pitch) else 0.0)
    direction = torch.cat((shape, torch.stack((angle.sin(), angle.cos())).float()))
    return F.normalize(direction, dim=0).numpy()
