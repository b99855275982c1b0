"""Lays utterances out as the talker reads them, several in a row of fixed length, so that every step is alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ..tokenizer import AUDIO_START, REF_AUDIO_END, REF_AUDIO_START
from .settings import TalkerSettings

NO_DOCUMENT = -1


@dataclass(frozen=True)
class Utterance:
    """Tokens of a text, and where its latents lie: ``count`` patches from ``begin`` on."""

    tokens: Sequence[int]
    begin: int
    count: int
    speaker: int


class Batch(NamedTuple):
    """B rows of T positions, M of which read a patch and N of which (with spare room) follow the making of one.

    Attributes:
        tokens: (B, T) int64, 0 where a patch is read.
        is_audio: (B, T) bool.
        document: (B, T) int64, the number of the utterance; NO_DOCUMENT where nothing is.
        position: (B, T) int64 within the document.
        heard: (M,) int64, places of what is read in the flattened rows; B T, which is no place, fills up.
        heard_patch: (M,) int64, the patch of each.
        made: (N,) int64, places of the patches to be made; 1 fills up.
        made_patch: (N,) int64.
        weight: (N,) fp32, 0 where it only fills up.
        stop: (N,) int64, 1 for an utterance's last patch.
    """

    tokens: Tensor
    is_audio: Tensor
    document: Tensor
    position: Tensor
    heard: Tensor
    heard_patch: Tensor
    made: Tensor
    made_patch: Tensor
    weight: Tensor
    stop: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(one.to(device, non_blocking=True) for one in self))


class _Sequence(NamedTuple):
    """What is at each position: a token, and a patch or -1. Of the last patches ``made`` are to be made."""

    tokens: list[int]
    patches: list[int]
    made: int

    @property
    def length(self) -> int:
        return len(self.tokens)


class Rows(Dataset[Batch]):
    """Batch number ``step``, whichever process asks for it: it depends on the seed and the step alone."""

    def __init__(
        self,
        utterances: Sequence[Utterance],
        settings: TalkerSettings,
        frames_per_second: float,
        *,
        word_start: int | None = None,
    ) -> None:
        """
        Args:
            utterances: all that there is.
            settings: of the stage.
            frames_per_second: patches of a second.
            word_start: what a text begins with and what the text of a continuation, joined to a prompt's, lacks.

        Raises:
            ValueError: no utterance of the first speaker fits into a row.
        """
        self._settings, self._word_start = settings, word_start
        self._longest_reference = int(settings.reference_seconds * frames_per_second)
        room = settings.length - 4
        self._all = [one for one in utterances if len(one.tokens) + one.count <= room]
        self._plain = [one for one in self._all if one.speaker == 0]
        self._of: dict[int, list[Utterance]] = {}
        for one in self._all:
            self._of.setdefault(one.speaker, []).append(one)
        if not self._plain:
            raise ValueError(f"talker.length is {settings.length}: no utterance of the first speaker is as short")

    def __len__(self) -> int:
        return 2**31

    def __getitem__(self, step: int) -> Batch:
        source = np.random.default_rng((self._settings.seed, step))
        settings = self._settings
        rows, length = settings.batch, settings.length
        most = int(rows * length * settings.patch_share)
        pages = [_Page(length) for _ in range(rows)]
        # Drawn before they are laid out, the longest first: what is drawn until a row is full is mostly short.
        for one in sorted(self._draw_all(source, rows * length, most), key=lambda one: one.length, reverse=True):
            if page := next((page for page in pages if page.room >= one.length), None):
                page.add(one)
        return lay_out_rows([page.sequences for page in pages], length, most)

    def _draw_all(self, source: np.random.Generator, places: int, most: int) -> list[_Sequence]:
        """Until there is no more room for the next one."""
        drawn: list[_Sequence] = []
        # Bounded, for settings with which nothing but what is too long is drawn.
        for _ in range(places):
            one = self._draw(source)
            if one.length > self._settings.length:
                continue
            places, most = places - one.length, most - one.made
            if min(places, most) < 0:
                break
            drawn.append(one)
        return drawn

    def _draw(self, source: np.random.Generator) -> _Sequence:
        settings, kind = self._settings, source.random()
        if kind < settings.reference_share:
            target = self._pick(source, self._all)
            other = self._another(source, target)
            count = min(other.count, int(source.integers(self._longest_reference // 3, self._longest_reference + 1)))
            reference = list(range(other.begin, other.begin + max(1, count)))
            tokens = [REF_AUDIO_START, *[0] * len(reference), REF_AUDIO_END, *target.tokens, AUDIO_START]
            patches = [-1, *reference, -1, *[-1] * (len(target.tokens) + 1)]
            return _append(tokens, patches, target)
        if kind < settings.reference_share + settings.continuation_share:
            first = self._pick(source, self._all)
            target = self._another(source, first)
            more = target.tokens[1:] if target.tokens[0] == self._word_start else target.tokens
            tokens = [*first.tokens, *more, AUDIO_START, *[0] * first.count]
            patches = [-1] * (len(first.tokens) + len(more) + 1)
            patches += range(first.begin, first.begin + first.count)
            return _append(tokens, patches, target)
        target = self._pick(source, self._plain)
        return _append([*target.tokens, AUDIO_START], [-1] * (len(target.tokens) + 1), target)

    @staticmethod
    def _pick(source: np.random.Generator, among: list[Utterance]) -> Utterance:
        return among[int(source.integers(len(among)))]

    def _another(self, source: np.random.Generator, than: Utterance) -> Utterance:
        """Of the same speaker: an utterance that had itself as a recording would only be copied."""
        among = self._of[than.speaker]
        if len(among) == 1:
            return than
        one = among[int(source.integers(len(among) - 1))]
        return among[-1] if one is than else one


def _append(tokens: list[int], patches: list[int], target: Utterance) -> _Sequence:
    made = range(target.begin, target.begin + target.count)
    return _Sequence(tokens + [0] * target.count, patches + list(made), target.count)


class _Page:
    def __init__(self, length: int) -> None:
        self.room, self.sequences = length, list[_Sequence]()

    def add(self, one: _Sequence) -> None:
        self.sequences.append(one)
        self.room -= one.length


def lay_out_rows(rows: Sequence[Sequence[tuple[list[int], list[int], int]]], length: int, most: int) -> Batch:
    """Rows of ``length`` positions out of sequences of tokens, patches (-1 for none) and how many are to be made.

    ``most`` is the room for patches to be made.
    """
    places = len(rows) * length
    tokens = np.zeros(places, np.int64)
    patch = np.full(places, -1, np.int64)
    document = np.full(places, NO_DOCUMENT, np.int64)
    position = np.zeros(places, np.int64)
    made: list[NDArray[np.int64]] = []
    stop = np.zeros(most, np.int64)
    count = number = 0
    for row, sequences in enumerate(rows):
        at = row * length
        for ids, patches, new in sequences:
            here = slice(at, at + len(ids))
            tokens[here], patch[here] = ids, patches
            document[here], position[here] = number, np.arange(len(ids))
            at += len(ids)
            made.append(np.arange(at - new, at))
            count += new
            stop[count - 1] = 1
            number += 1
    heard = np.flatnonzero(patch >= 0)
    # As many for every batch: what is compiled wants one shape, and a row never reads more than its length.
    spare = places - len(heard)
    target = np.concatenate([*made, np.ones(most - count, np.int64)])
    weight = np.zeros(most, np.float32)
    weight[:count] = 1
    shape = (len(rows), length)
    arrays = (
        tokens.reshape(shape),
        (patch >= 0).reshape(shape),
        document.reshape(shape),
        position.reshape(shape),
        np.concatenate((heard, np.full(spare, places, np.int64))),
        np.concatenate((patch[heard], np.zeros(spare, np.int64))),
        target,
        np.maximum(patch[target], 0),
        weight,
        stop,
    )
    return Batch(*(torch.from_numpy(array) for array in arrays))
