"""The errors a caller may see: a code and one sentence."""

from __future__ import annotations

import re
from typing import Literal

Code = Literal["INVALID_ARG", "NOT_FOUND", "UNAVAILABLE", "CANCELLED", "INTERNAL"]

_FIELD_TEXT = re.compile(r"(?:in ensemble '[^']*', )?(?P<text>(?P<field>[A-Z][A-Z0-9_]+): (?P<problem>.*))", re.DOTALL)
_NOT_FOUND = re.compile(r"(?:'[^']*'|\"[^\"]*\") is not known; known are ", re.DOTALL)
_UNAVAILABLE_MARKS = (
    "is full",
    "Exceeds maximum queue size",
    "Server not ready",
    "is stopping",
    "is not healthy",
    "is not ready",
    "has no available versions",
    "has died",
    "has passed",
)
RETRY_SECONDS = 1
"""When it is worth another try: places come free with every speech that ends."""
TRY_AGAIN = f"try again in {RETRY_SECONDS} s"
MOST_ECHOED = 64
"""Characters of a caller's own text that an error repeats: errors travel in headers of bounded size."""


class SpeechError(Exception):
    """An error meant for the caller: no paths, no library banners, no traceback in its text.

    The texts of INVALID_ARG and NOT_FOUND begin with the field's name and a colon. Triton drops the code of an
    error on its way through a business-logic call and through a gRPC stream, so the text alone must tell.
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code: Code = code
        self.text = text

    @property
    def field(self) -> str | None:
        """The input that the caller has to mend; None where it is none."""
        match = _FIELD_TEXT.fullmatch(self.text) if self.code in ("INVALID_ARG", "NOT_FOUND") else None
        return match["field"] if match else None

    @classmethod
    def from_text(cls, text: str) -> SpeechError:
        """The error that another stage reported, with the code read back from its text."""
        match = _FIELD_TEXT.fullmatch(text)
        if match:
            code: Code = "NOT_FOUND" if _NOT_FOUND.match(match["problem"]) else "INVALID_ARG"
            return cls(code, match["text"])
        if any(mark in text for mark in _UNAVAILABLE_MARKS):
            return cls("UNAVAILABLE", text)
        return cls("INTERNAL", text)


def invalid(field: str, problem: str) -> SpeechError:
    """INVALID_ARG: ``problem`` says what was wrong with ``field`` and what is allowed."""
    return SpeechError("INVALID_ARG", f"{field}: {problem}")


def unknown(field: str, value: str, known: str) -> SpeechError:
    """NOT_FOUND: ``value`` names nothing; ``known`` lists what there is."""
    return SpeechError("NOT_FOUND", f"{field}: {echoed(value)} is not known; known are {known}")


def echoed(value: str) -> str:
    """A caller's own text as an error quotes it."""
    return repr(value if len(value) <= MOST_ECHOED else value[:MOST_ECHOED] + "...")


def full(what: str, limit: int) -> SpeechError:
    """UNAVAILABLE: ``what`` holds ``limit`` entries and takes no more for now."""
    return SpeechError("UNAVAILABLE", f"{what} is full ({limit}); {TRY_AGAIN}")


def too_late(seconds: float) -> SpeechError:
    """UNAVAILABLE: a request had not ended by its deadline, ``seconds`` after its beginning."""
    return SpeechError("UNAVAILABLE", f"the deadline of {seconds:g} s has passed; the stream was ended")
