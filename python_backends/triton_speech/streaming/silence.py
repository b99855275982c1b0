"""Silence at a stream's end is not sent beyond a limit, although nobody knows yet where the end will be."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

SILENCE = 10 ** (-50 / 20)
"""A sample below this, -50 dB of full scale, is silent."""


@dataclass
class SilentTail:
    """Holds back what may turn out to be the silent end of one stream.

    Silence up to ``most`` samples passes at once. What is longer waits: the next sound releases it whole, and what
    waits at the stream's end is never sent. So what was sent is the beginning of all samples, however they were cut.
    """

    most: int
    _quiet: int = 0
    """Silent samples that were sent since the last sound."""
    _held: list[Samples] = field(default_factory=list)

    def push(self, samples: Samples) -> Samples:
        """Takes the next samples (N,) fp32, and returns those that are to be sent now."""
        sounds = np.flatnonzero(np.abs(samples) >= SILENCE)
        end = int(sounds[-1]) + 1 if sounds.size else 0
        released: list[Samples] = []
        if end:
            released, self._held, self._quiet = self._held, [], 0
        passing = min(self.most - self._quiet, len(samples) - end)
        self._quiet += passing
        end += passing
        if end < len(samples):
            # A copy: the samples may be a view of a whole batch.
            self._held.append(samples[end:].copy())
        return np.concatenate([*released, samples[:end]]) if released else samples[:end]
