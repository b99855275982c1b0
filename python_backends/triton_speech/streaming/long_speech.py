"""How far a speech of several segments has come, and what the talker is given of the next one."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..long_text import LongText, segment_seed
from ..request import CONTINUES

Array = NDArray[Any]


class LongSpeech:
    """Counts a stream's frames over its segments. A text of one segment is the plain case.

    Args:
        first: the talker's inputs of the first segment, by name. Those of the later ones are made of them.
        rest: what follows it.
    """

    def __init__(self, first: Mapping[str, Array], rest: LongText) -> None:
        self._first = dict(first)
        self._rest = rest
        self._begun = 0
        self._frames = 0
        self._was_cut = False
        self._followed: list[Array] = []
        self._follow_left = rest.follow_frames

    @property
    def is_long(self) -> bool:
        return bool(self._rest.more)

    @property
    def seconds(self) -> float:
        """Of audio that the talker has made."""
        return self._frames / self._rest.frames_per_second

    def take(self, patches: Array, finish: str) -> None:
        """Counts a chunk of the talker's: new patches (T, P, D), and how its segment ended, if it did."""
        self._frames += len(patches)
        self._was_cut |= finish == "length"
        if self._follow_left:
            self._followed.append(patches[: self._follow_left].copy())
            self._follow_left -= len(self._followed[-1])

    def goes_on(self, finish: str) -> bool:
        """Whether another segment follows the one that ended so."""
        return finish in ("stop", "length") and self._begun <= len(self._rest.more) and self._frames_left() > 0

    def finish_reason(self, finish: str) -> str:
        """The whole stream's, whose last segment ended so: ``length`` where any segment was cut."""
        return "length" if finish == "stop" and self._was_cut else finish

    def next_inputs(self) -> dict[str, Array]:
        """The talker's inputs of the next segment; there must be one."""
        index = self._begun
        self._begun += 1
        if index == 0:
            return self._first
        segment = self._rest.more[index - 1]
        inputs = {
            **self._first,
            "STREAM_ID": np.array([uuid.uuid4().hex.encode()], dtype=np.object_),
            "TOKENS": np.array(segment.tokens, dtype=np.int32),
            "SEED": np.array([segment_seed(int(self._first["SEED"].item()), index)], dtype=np.uint64),
            "MAX_FRAMES": np.array([min(segment.max_frames, self._frames_left())], dtype=np.int32),
            "PRIORITY": np.array([CONTINUES], dtype=np.int32),
        }
        if self._followed:
            inputs["REFERENCE_LATENTS"] = np.concatenate(self._followed)
        return inputs

    def _frames_left(self) -> int:
        most = self._rest.max_frames
        return np.iinfo(np.int32).max if most is None else most - self._frames
