"""The client for places that gRPC does not reach: Triton's ``generate_stream`` over HTTP, nothing but urllib.

JSON carries every sample as a decimal number, in both FP32 and INT16, so this costs some twenty times the bytes
of gRPC. It cannot carry the bytes of a recording.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from triton_speech_client.errors import (
    DeadlineExceeded,
    InvalidRequest,
    RequestCancelled,
    ServerError,
    ServerUnavailable,
    error_from_text,
)
from triton_speech_client.request import SpeechOptions, build_tensors
from triton_speech_client.speech import AudioChunk, Speech, SpeechBuilder

if TYPE_CHECKING:
    from typing_extensions import Unpack


class HttpSpeechClient:
    """Whole utterances over HTTP. ``timeout`` is the longest wait, in seconds, for the next response."""

    def __init__(self, url: str = "http://127.0.0.1:8000", pipeline: str = "voxcpm2", timeout: float = 60.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest("url", f"{url!r} does not begin with http:// or https://")
        self.url = url.rstrip("/")
        self.pipeline = pipeline
        self.timeout = timeout

    def synthesize(self, text: str, *, request_id: str = "", **options: Unpack[SpeechOptions]) -> Speech:
        """The whole speech, float32; raises as ``SpeechClient.synthesize`` does.

        ``reference`` and ``prompt_audio`` raise ``InvalidRequest``: use a gRPC client, or a stored voice.
        """
        body = {name: _json_value(name, values) for name, values in build_tensors(text, **options).items()}
        builder = SpeechBuilder()
        for response in self._responses(body | {"id": request_id} if request_id else body):
            builder.add(_chunk(response))
        if builder.parts and not builder.finish_reason:
            raise ServerError(f"the stream ended without a finish reason after {len(builder.parts)} chunks")
        if builder.finish_reason == "cancelled":
            raise RequestCancelled("the server cancelled the request")
        return builder.speech()

    def _responses(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The server-sent events of one request, as they come."""
        path = f"/v2/models/{urllib.parse.quote(self.pipeline, safe='')}/generate_stream"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as reply:
                for line in reply:
                    if line.startswith(b"data:"):
                        response = json.loads(line[len(b"data:") :])
                        if "error" in response:
                            raise error_from_text(response["error"])
                        yield response
        except urllib.error.HTTPError as e:
            raise error_from_text(_error_text(e)) from e
        except TimeoutError as e:
            raise DeadlineExceeded(f"no response came within the timeout of {self.timeout:g} s") from e
        except urllib.error.URLError as e:
            raise ServerUnavailable(f"no connection to the server at {self.url}: {e.reason}") from e
        except (ConnectionError, http.client.HTTPException) as e:
            raise ServerUnavailable(f"the connection to the server at {self.url} was lost: {e}") from e


def _json_value(name: str, values: np.ndarray[Any, Any]) -> Any:
    if values.dtype != np.object_:
        return values.tolist() if name == "CHUNK_SCHEDULE" else values.item()
    try:
        return values.item().decode("utf-8")
    except UnicodeDecodeError as e:
        raise InvalidRequest(name, "is not UTF-8 text, and JSON carries nothing else; use a gRPC client") from e


def _chunk(response: dict[str, Any]) -> AudioChunk:
    try:
        return AudioChunk(
            samples=np.atleast_1d(np.asarray(response["AUDIO"], dtype=np.float32)),
            sample_rate=int(response["SAMPLE_RATE"]),
            index=int(response["CHUNK_INDEX"]),
            finish_reason=str(response["FINISH_REASON"]),
        )
    except KeyError as e:
        raise ServerError(f"a response lacks the output {e.args[0]}") from e


def _error_text(error: urllib.error.HTTPError) -> str:
    """What Triton says in the body of a refused request: JSON, or one event for an error of the model."""
    body = error.read().decode("utf-8", "replace").removeprefix("data:").strip()
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}: {body or error.reason}"
