"""From what was said to a table of figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from triton_speech.families.voxcpm2.training.speakers import SPEAKERS

from .asked import RATE, Said
from .judge import Judge, errors
from .likeness import Likeness
from .normal import words
from .sound import harmonic_to_noise, mel_distance

HEADS = ("run", "n", "WER %", "CER %", "s/word", "length %", "nearest %", "mel dB", "HNR dB", "pitch Hz")


@dataclass
class Figures:
    """Of one run over the sentences. What was not measured is not a number."""

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    nearest: float = math.nan
    """Share whose voice is most like that of the right one of SPEAKERS."""
    mel: float = math.nan
    """Mean mel distance to the teacher, in dB."""

    def summary(self, category: str | None = None) -> dict[str, Any]:
        """All figures of a category, or of everything."""
        rows = [row for row in self.rows if category in (None, row["category"])]
        made = errors([row["text"] for row in rows], [row["heard"] for row in rows])
        return {
            "run": self.name,
            "n": len(rows),
            "WER %": 100 * made.wer,
            "CER %": 100 * made.cer,
            "s/word": sum(row["seconds"] for row in rows) / sum(len(words(row["text"])) for row in rows),
            "length %": 100 * statistics.mean(row["finish_reason"] == "length" for row in rows),
            "nearest %": 100 * self.nearest,
            "mel dB": self.mel,
            "HNR dB": _median([row["hnr"] for row in rows]),
            "pitch Hz": _median([row["pitch"] for row in rows]),
        }


class Assessor:
    """Judges runs against the teacher's, and voices against the speakers' recordings."""

    def __init__(self, recordings: Sequence[tuple[NDArray[np.float32], int]]) -> None:
        self._judge, self.likeness = Judge(), Likeness()
        self._speakers = np.stack([self.likeness.embed(samples, rate) for samples, rate in recordings])

    def assess(self, name: str, said: Sequence[Said], teacher: Mapping[str, Said], *, voices: bool) -> Figures:
        """``voices``: each was to be in the voice of its ``speaker``; else the sound is compared with the teacher's."""
        figures = Figures(name)
        distances, hits = [], []
        for one in said:
            sound = soxr.resample(one.samples, one.rate, RATE)
            ratio, pitch = harmonic_to_noise(sound)
            row = {
                "text": one.sentence.text,
                "category": one.sentence.category,
                "heard": self._judge.hear(one.samples, one.rate),
                "seconds": len(one.samples) / one.rate,
                "finish_reason": one.finish_reason,
                "speaker": SPEAKERS[one.speaker].name,
                "hnr": ratio,
                "pitch": pitch,
            }
            if voices:
                alike = self._speakers @ self.likeness.embed(one.samples, one.rate)
                row["nearest"] = SPEAKERS[int(alike.argmax())].name
                hits.append(int(alike.argmax()) == one.speaker)
            elif one.sentence.text in teacher and teacher[one.sentence.text] is not one:
                distances.append(mel_distance(sound, teacher[one.sentence.text].samples))
            figures.rows.append(row)
        figures.nearest = statistics.mean(hits) if hits else math.nan
        figures.mel = statistics.mean(distances) if distances else math.nan
        return figures


def table(lines: Sequence[Mapping[str, Any]], heads: Sequence[str]) -> str:
    """Markdown; what is not a number is left empty."""
    out = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    out += ["| " + " | ".join(_cell(line.get(head, "")) for head in heads) + " |" for line in lines]
    return "\n".join(out)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.2f}" if value < 1 else f"{value:.1f}"
    return str(value)


def _median(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan
