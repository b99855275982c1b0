"""The errors of the client, and how a server's text becomes one of them.

Over a gRPC stream Triton sends no status code with a model's error, only its text; so the text decides.
"""

from __future__ import annotations

import re

__all__ = [
    "DeadlineExceeded",
    "InvalidRequest",
    "RequestCancelled",
    "ServerError",
    "ServerUnavailable",
    "SpeechClientError",
    "VoiceNotFound",
    "error_from_grpc",
    "error_from_text",
]


class SpeechClientError(Exception):
    """Base of every error that this package raises on purpose. Its text is one sentence for a person."""


class InvalidRequest(SpeechClientError):  # noqa: N818
    """The caller can mend this: ``field`` names the input as it is on the wire (``TEXT``), ``message`` says how.

    Also raised before anything is sent, for a value that has no place in the field's type, with the same names.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    def __reduce__(self) -> tuple[type[InvalidRequest], tuple[str, str]]:
        return type(self), (self.field, self.message)


class VoiceNotFound(InvalidRequest):
    """The server has no voice of that name; ``voices()`` lists those that it has."""


class ServerUnavailable(SpeechClientError):  # noqa: N818
    """Not reachable, not ready, lost in mid-stream, or full: the same request may succeed later."""


class RequestCancelled(SpeechClientError):  # noqa: N818
    """The server ended the request as cancelled."""


class DeadlineExceeded(SpeechClientError):  # noqa: N818
    """No response within ``timeout``, or not all of them within ``deadline``. The request was cancelled."""


class ServerError(SpeechClientError):
    """The server failed, or broke the contract of the stream."""


_PREFIX = re.compile(r"(?:\[request id: [^\]]*\] ?|in ensemble '[^']*', )+")
_FIELD_TEXT = re.compile(r"(?P<field>[A-Z][A-Z0-9_]+): (?P<problem>.+)", re.DOTALL)
# Triton's own checks of names, types and shapes, made before any model sees the request.
_TRITON_FIELD = re.compile(r"(?:unexpected inference (?:in|out)put|for input|inference input) '(?P<field>[^']+)'")
_TRITON_MISSING = re.compile(r"missing required input\(s\) \['(?P<field>[^']+)'")
_NO_PIPELINE = re.compile(
    r"unknown model: '[^']*' is not found|unexpected inference input 'TEXT'|"
    r"unexpected inference output '(?:AUDIO|PCM16|SAMPLE_RATE|CHUNK_INDEX|FINISH_REASON)'"
)
_NO_VOICES = re.compile(r"unknown model: 'voices' is not found")
_NOT_FOUND = re.compile(r"(?:'[^']*'|\"[^\"]*\") is not known; known are ", re.DOTALL)
_UNAVAILABLE_MARKS = (
    "is full",
    "exceeds maximum queue size",
    "has no available versions",
    "is not ready",
    "is not healthy",
    "has died",
    "server is stopping",
    "server not ready",
)
# What gRPC for asyncio says, with the status INTERNAL, when a connection ends while the request is being written.
_BROKE_WHILE_SENDING = "Internal error from Core"
_DEADLINE = re.compile(r"\bthe deadline of \S+ s has passed\b")
_CANCELLED = re.compile(r"\bcancell?ed\b", re.IGNORECASE)


def error_from_text(text: str) -> SpeechClientError:
    """The error behind an error response's text, with what Triton puts around the text taken off."""
    text = _PREFIX.sub("", text.strip(), count=1)
    if field_text := _FIELD_TEXT.fullmatch(text):
        field, problem = field_text["field"], field_text["problem"]
        is_voice = field in ("VOICE", "NAME") and bool(_NOT_FOUND.match(problem))
        return VoiceNotFound(field, problem) if is_voice else InvalidRequest(field, problem)
    if _NO_VOICES.search(text):
        return ServerError("the server does not offer the model 'voices': its voices can be neither listed nor changed")
    if _NO_PIPELINE.search(text):
        return InvalidRequest("pipeline", text)
    if triton := _TRITON_FIELD.search(text) or _TRITON_MISSING.search(text):
        return InvalidRequest(triton["field"], text)
    if _DEADLINE.search(text):
        return DeadlineExceeded(text)
    if any(mark in text.lower() for mark in _UNAVAILABLE_MARKS):
        return ServerUnavailable(text)
    first_line = text.partition("\n")[0].strip()  # the rest is a traceback, of use in the server's log only
    if _CANCELLED.search(first_line):
        return RequestCancelled(first_line)
    return ServerError(first_line or "the server reported an error without a text")


def error_from_grpc(code: str, details: str, url: str, limit: float | None = None) -> SpeechClientError:
    """The error behind a failed call: a gRPC status name such as ``UNAVAILABLE``; ``limit`` is in seconds."""
    if code == "UNAVAILABLE" or _BROKE_WHILE_SENDING in details:
        told = error_from_text(details)
        by_model = isinstance(told, ServerUnavailable)
        return told if by_model else ServerUnavailable(f"no connection to the server at {url}: {details}")
    if code == "CANCELLED":
        return RequestCancelled("the request was cancelled")
    if code == "DEADLINE_EXCEEDED":
        within = "its deadline" if limit is None else f"the deadline of {limit:g} s"
        return DeadlineExceeded(f"the request did not end within {within}")
    error = error_from_text(details)
    return error if type(error) is not ServerError else ServerError(f"{code}: {error}")
