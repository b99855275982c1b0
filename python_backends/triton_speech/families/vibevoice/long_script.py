"""A script that is too long for one stretch of speech, cut between turns. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...long_text import cut
from .script import Script, Turn


def cut_script(script: Script, count: Callable[[Turn], int], room: int) -> list[Script]:
    """Scripts of whole turns, of up to ``room`` tokens each, that have all the speakers of ``script``.

    A turn that is longer is cut at its sentences, and each part of it is a turn of the same speaker.

    Args:
        count: the tokens that a turn takes.
    """
    groups: list[list[Turn]] = [[]]
    used = 0
    for turn in script.turns:
        for part in _parts(turn, count, room):
            tokens = count(part)
            if groups[-1] and used + tokens > room:
                groups.append([])
                used = 0
            groups[-1].append(part)
            used += tokens
    return [replace(script, turns=tuple(group)) for group in groups]


def _parts(turn: Turn, count: Callable[[Turn], int], room: int) -> list[Turn]:
    def fits(text: str) -> bool:
        return count(replace(turn, text=text)) <= room

    return [turn] if fits(turn.text) else [replace(turn, text=text) for text in cut(turn.text, len(turn.text), fits)]
