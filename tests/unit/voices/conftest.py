from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from triton_speech.voices.voice import Voice


@pytest.fixture
def make_voice() -> Callable[..., Voice]:
    """A voice whose latents are filled with one number; fields may be replaced."""

    def make(fill: float = 1.0, frames: int = 3, **fields: Any) -> Voice:
        given = {
            "family": "voxcpm2",
            "mode": "reference",
            "tensors": {"REFERENCE_LATENTS": np.full((frames, 2, 8), fill, np.float32)},
            "created": "2026-11-30T12:00:00+00:00",
            "sources": {"REFERENCE_AUDIO": "00ff"},
        }
        return Voice(**{**given, **fields})

    return make
