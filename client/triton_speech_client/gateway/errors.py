"""Errors as OpenAI's clients know them: one shape, and the status that tells what the caller can do."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from triton_speech_client.errors import (
    DeadlineExceeded,
    InvalidRequest,
    RequestCancelled,
    ServerUnavailable,
    SpeechClientError,
    VoiceNotFound,
)
from triton_speech_client.retry import hinted_seconds

log = logging.getLogger("triton_speech.gateway")

_FIELDS = {
    "TEXT": "input",
    "VOICE": "voice",
    "REFERENCE_AUDIO": "reference_audio",
    "PROMPT_AUDIO": "prompt_audio",
    "PROMPT_TEXT": "prompt_text",
    "INSTRUCTION": "instructions",
    "LANGUAGE": "language",
    "SEED": "seed",
    "CFG_VALUE": "cfg_value",
    "INFERENCE_STEPS": "inference_steps",
    "TEMPERATURE": "temperature",
    "TOP_K": "top_k",
    "TOP_P": "top_p",
    "REPETITION_PENALTY": "repetition_penalty",
    "CODES_TEMPERATURE": "codes_temperature",
    "CODES_TOP_K": "codes_top_k",
    "CODES_TOP_P": "codes_top_p",
    "MAX_SECONDS": "max_seconds",
    "NAME": "name",
    "FAMILY": "family",
    "pipeline": "model",
}
_WIRE_NAME = re.compile(rf"\b(?:{'|'.join(name for name in _FIELDS if name.isupper())})\b")
RETRY_SECONDS = 1
"""When a caller should try again, where nobody has said when."""


class ApiError(Exception):
    """An error on its way to the caller: HTTP status, and the members of OpenAI's ``error`` object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """OpenAI's ``type``."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """What is sent: as JSON, in an SSE event or in a WebSocket's."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def invalid(param: str, problem: str, code: str = "invalid_value") -> ApiError:
    """400 for one field, in the words ``field: problem``."""
    return ApiError(400, f"{param}: {problem}", param=param, code=code)


def retry_after(hint: str = "") -> dict[str, str]:
    """The header ``Retry-After``, in whole seconds: what a server's text asks for ("try again in 2 s"), or a moment."""
    return {"Retry-After": str(max(RETRY_SECONDS, math.ceil(hinted_seconds(hint))))}


def api_error(error: BaseException, request_id: str = "") -> ApiError:
    """The error that the caller sees. What is of no use to him goes to the log, under the request's id."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequest):
        return _from_invalid(error)
    if isinstance(error, ServerUnavailable) and "is full" in str(error):
        return ApiError(503, str(error), code="overloaded", headers=retry_after(str(error)))
    if isinstance(error, SpeechClientError):
        log.warning("request %s: %s: %s", request_id or "-", type(error).__name__, error)
    else:
        log.error("request %s failed", request_id or "-", exc_info=error)
    if isinstance(error, ServerUnavailable | RequestCancelled):
        text = "the speech server is not available; try again in a moment"
        return ApiError(503, text, code="unavailable", headers=retry_after(str(error)))
    if isinstance(error, DeadlineExceeded):
        return ApiError(504, "the speech server did not answer in time", code="timeout")
    return ApiError(500, "the speech server failed", code="internal_error")


def _from_invalid(error: InvalidRequest) -> ApiError:
    param = _FIELDS.get(error.field, error.field.lower())
    problem = _WIRE_NAME.sub(lambda match: _FIELDS[match[0]], error.message)
    if error.field == "pipeline":
        return ApiError(404, f"model: {problem}", param="model", code="model_not_found")
    if isinstance(error, VoiceNotFound):
        return ApiError(404, f"{param}: {problem}", param=param, code="voice_not_found")
    return invalid(param, problem)
