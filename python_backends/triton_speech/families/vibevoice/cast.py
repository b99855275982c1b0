"""Whose voice is whose: stored voices and recordings of one request, by numbers. Needs no torch.

A request's voices have the numbers 0, 1, ... in the order of VOICE. Where VOICE says ``default``, or where there is no
VOICE, the next of the recordings in REFERENCE_AUDIO stands in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import invalid
from ...request import SpeechRequest
from ...voices.voice import Array

DEFAULT_VOICE = "default"


def count_voices(request: SpeechRequest) -> tuple[int, str]:
    """Voices that a request brings, stored or recorded, 0 where it leaves them to the model; and the field they are in.

    Raises:
        SpeechError: INVALID_ARG: the recordings do not fit the places that VOICE leaves for them.
    """
    names, recordings = request.voices, request.references
    places = sum(name == DEFAULT_VOICE for name in names)
    if len(names) <= 1 and places == len(names):
        return recordings, "REFERENCE_AUDIO"
    if places == len(names) and not recordings:
        return 0, "VOICE"
    if recordings != places:
        have = "1 recording" if recordings == 1 else f"{recordings} recordings"
        needed = "1 voice" if places == 1 else f"{places} voices"
        raise invalid("REFERENCE_AUDIO", f"has {have} for {needed} named {DEFAULT_VOICE!r} in VOICE; give one for each")
    return len(names), "VOICE"


def number_rows(rows: Array, number: int) -> Array:
    """A copy of rows (n, 1, 1 + D) that belongs to the voice of this number."""
    numbered = np.array(rows)
    numbered[:, :, 0] = number
    return numbered


def join_rows(stored: Array, recorded: Sequence[Array]) -> Array:
    """Rows (n, 1, 1 + D) of stored voices, with their numbers, and of recordings, which take the numbers left free."""
    taken = set(stored[:, 0, 0].tolist())
    free = [number for number in range(len(taken) + len(recorded)) if number not in taken]
    return np.concatenate([stored, *(number_rows(rows, free[place]) for place, rows in enumerate(recorded))])
