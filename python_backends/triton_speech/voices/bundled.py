"""The voices that a checkpoint brings along in its folder ``voices``: read once, with it, and never written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from .name import is_name
from .store import SUFFIX
from .voice import Voice, VoiceFileError

FOLDER = "voices"


def load_bundled(checkpoint: Path, check: Callable[[Voice], None], taken: Collection[str]) -> dict[str, Voice]:
    """By name, none where there is no such folder; whatever else lies in it is let be.

    Args:
        checkpoint: its folder.
        check: raises ``VoiceFileError`` where the checkpoint cannot speak in a voice.
        taken: names that mean something else.

    Raises:
        ValueError: names the file that is no voice, and says why.
    """
    voices = {}
    for path in sorted((checkpoint / FOLDER).glob(f"*{SUFFIX}")):
        name = path.name.removesuffix(SUFFIX)
        try:
            if not is_name(name):
                raise VoiceFileError("has a name that no voice can have")
            if name in taken:
                raise VoiceFileError("has the name of a built-in voice")
            voices[name] = Voice.from_bytes(path.read_bytes())
            check(voices[name])
        except VoiceFileError as error:
            raise ValueError(f"the checkpoint's voice {FOLDER}/{path.name} cannot be used: it {error}") from error
    return voices
