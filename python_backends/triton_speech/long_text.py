"""A text that is too long for one stretch of speech: its segments, their seeds, and what binds them together."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from .segments import segments

LEAST_CHARS = 8
"""Shorter segments are not tried."""
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Segment:
    """What the talker is given of one segment: its token ids, and the most frames that it may make of them."""

    tokens: list[int]
    max_frames: int


@dataclass(frozen=True)
class LongText:
    """What follows the first segment of a request.

    Attributes:
        more: the segments after the first one, in their order.
        follow_frames: so many frames of what was spoken first are the reference of what is spoken later; 0 for none.
        frames_per_second: of audio.
        max_frames: of the whole stream; None where the request set no limit.
    """

    more: list[Segment]
    follow_frames: int
    frames_per_second: float
    max_frames: int | None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LongText:
        fields = json.loads(text)
        return cls(**{**fields, "more": [Segment(**segment) for segment in fields["more"]]})


def cut(text: str, max_chars: int, fits: Callable[[str], bool]) -> list[str]:
    """``text`` in stretches to be spoken one after another.

    Each is as many whole sentences as ``max_chars`` characters hold, or a part of one that is longer. One that does not
    fit is cut further. A text that is short enough and fits is returned as it is.
    """
    if len(text) <= max_chars and fits(text):
        return [text]
    stretches = []
    for stretch in _packed(text, max_chars):
        smaller = max(min(len(stretch), max_chars) // 2, LEAST_CHARS)
        is_whole = len(stretch) <= LEAST_CHARS or fits(stretch)
        stretches += [stretch] if is_whole else cut(stretch, smaller, fits)
    return stretches or [text]


def segment_seed(seed: int, index: int) -> int:
    """The seed of a segment: the request's own for the first one, and for each later one another 64 bits of it.

    The mixing is that of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
    """
    if index == 0:
        return seed
    mixed = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def _packed(text: str, max_chars: int) -> list[str]:
    """Neighbouring sentences put together, with what stands between them in the text."""
    packs: list[tuple[int, int]] = []
    end = 0
    for sentence in segments(text, max_chars):
        start = text.index(sentence, end)
        end = start + len(sentence)
        if packs and end - packs[-1][0] <= max_chars:
            packs[-1] = packs[-1][0], end
        else:
            packs.append((start, end))
    return [text[start:end] for start, end in packs]
