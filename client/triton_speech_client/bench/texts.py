"""What is spoken under load: sentences of several lengths that come with the package, or the lines of a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from triton_speech_client.errors import InvalidRequest

LENGTHS = ("short", "medium", "long", "paragraph")
"""2 to 6 words, 9 to 12, about 30, about 100."""


def bundled_texts(lengths: Sequence[str] = ("medium",)) -> list[str]:
    """The texts of these ``LENGTHS``, in turn: one of each, then the next of each."""
    everything = json.loads(files(__package__).joinpath("texts.json").read_text(encoding="utf-8"))
    if unknown := [length for length in lengths if length not in everything]:
        raise InvalidRequest("texts", f"{unknown[0]!r} is not known; known are {', '.join(LENGTHS)}")
    most = max(len(everything[length]) for length in lengths)
    # A set with fewer texts begins again: each length keeps its share.
    return [everything[length][i % len(everything[length])] for i in range(most) for length in lengths]


def texts_of_file(path: Path) -> list[str]:
    """The lines of a UTF-8 file that are not blank."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidRequest("texts", f"{str(path)!r} cannot be read: {e}") from e
    if not (texts := [line.strip() for line in lines if line.strip()]):
        raise InvalidRequest("texts", f"{str(path)!r} holds no text")
    return texts
