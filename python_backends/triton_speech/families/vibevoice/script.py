"""A script for several speakers: ``Speaker 1: ...``, a turn a line. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import invalid

MOST_SPEAKERS = 4
"""What the model was trained for."""
_TURN = re.compile(r"speaker\s+(\d{1,9})\s*[:\uff1a](.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Turn:
    """What one speaker says. ``speaker`` counts from 0, in the order of the script's numbers, without gaps."""

    speaker: int
    text: str


@dataclass(frozen=True)
class Script:
    """Turns, and the number that each speaker has in the script."""

    turns: tuple[Turn, ...]
    numbers: tuple[int, ...]

    @property
    def entrances(self) -> tuple[int, ...]:
        """The speakers in the order in which they first speak."""
        return tuple(dict.fromkeys(turn.speaker for turn in self.turns))


def read_script(text: str, clean: Callable[[str], str] = str.strip) -> Script:
    """Reads a script, or a text without any speaker, which is spoken by one.

    A line that names no speaker goes on with the turn before it; before the first that does, the first speaker of the
    script speaks. A turn without a word is left out.

    Args:
        text: the caller's TEXT.
        clean: what each turn's text is turned into; one that becomes empty has no word.

    Raises:
        SpeechError: INVALID_ARG: there is nothing to be spoken, or there are too many speakers.
    """
    spoken: list[tuple[int | None, list[str]]] = [(None, [])]
    for line in text.splitlines():
        match = _TURN.fullmatch(line.strip())
        if match:
            spoken.append((int(match[1]), [match[2]]))
        else:
            spoken[-1][1].append(line)
    turns = [(number, cleaned) for number, lines in spoken if (cleaned := clean(" ".join(lines).strip()))]
    if not turns:
        raise invalid("TEXT", "holds nothing that can be spoken")
    named = sorted({number for number, _ in turns if number is not None})
    if len(named) > MOST_SPEAKERS:
        listed = ", ".join(map(str, named[: 2 * MOST_SPEAKERS])) + (", ..." if len(named) > 2 * MOST_SPEAKERS else "")
        raise invalid("TEXT", f"has {len(named)} speakers ({listed}), at most {MOST_SPEAKERS} are allowed")
    numbers = named or [1]
    order = {number: index for index, number in enumerate(numbers)}
    first = next((number for number, _ in turns if number is not None), numbers[0])
    return Script(
        tuple(Turn(order[first if number is None else number], cleaned) for number, cleaned in turns), tuple(numbers)
    )


def choose_voices(script: Script, count: int, field: str = "VOICE") -> tuple[int, ...]:
    """Which of ``count`` voices each speaker of the script has, by index: the first voice is that of whoever speaks
    first. Empty for none at all.

    Args:
        field: the request's field that the voices came in.

    Raises:
        SpeechError: INVALID_ARG: there are not as many voices as speakers.
    """
    if count == 0:
        return ()
    speakers = script.entrances
    if count != len(speakers):
        named = ", ".join(f"Speaker {script.numbers[speaker]}" for speaker in speakers)
        lack = "1 voice" if count == 1 else f"{count} voices"
        needed = "1 speaker" if len(speakers) == 1 else f"{len(speakers)} speakers"
        raise invalid(field, f"has {lack} for {needed} ({named}); give one for each, in this order, or none")
    return tuple(speakers.index(speaker) for speaker in range(count))
