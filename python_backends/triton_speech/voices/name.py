"""What a voice may be called. A name that passes is safe to be a part of a file's name."""

from __future__ import annotations

import re

from ..errors import invalid

MAX_NAME_CHARS = 64
_NAME = re.compile("[A-Za-z0-9_-]+")


def is_name(name: str) -> bool:
    """Whether a voice may be called so."""
    return len(name) <= MAX_NAME_CHARS and bool(_NAME.fullmatch(name))


def check_name(field: str, name: str) -> str:
    """``name`` itself.

    Raises:
        SpeechError: INVALID_ARG, saying what is allowed.
    """
    if len(name) > MAX_NAME_CHARS:
        raise invalid(field, f"has {len(name)} characters, at most {MAX_NAME_CHARS} are allowed")
    if not is_name(name):
        raise invalid(field, f"{name!r} is not a voice's name: letters A to Z, digits, '-' and '_' are allowed")
    return name
