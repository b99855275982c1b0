"""Samples on their way out: float32 to 16 bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def to_pcm16(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """``clip(floor(x * 32768), -32768, 32767)``, as libsndfile writes float samples. Samples must be finite."""
    scaled = np.floor(samples * np.float32(32768))
    return np.clip(scaled, -32768, 32767).astype(np.int16)
