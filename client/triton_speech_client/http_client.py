"""The client for places that gRPC does not reach: Triton's ``generate_stream`` over HTTP, nothing but urllib.

JSON carries every sample as a decimal number, in both FP32 and INT16, so this costs some twenty times the bytes
of gRPC. It cannot carry the bytes of a recording.
"""

from __future__ import annotations

import contextlib
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
    SpeechClientError,
    error_from_text,
)
from triton_speech_client.request import SpeechOptions, build_tensors
from triton_speech_client.speech import AudioChunk, Speech, SpeechBuilder
from triton_speech_client.voices import (
    ADD_SECONDS,
    MODEL,
    RESULT,
    Recordings,
    Voice,
    build_command,
    read_voice,
    read_voices,
)

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

    def synthesize(
        self, text: str, *, request_id: str = "", deadline: float | None = None, **options: Unpack[SpeechOptions]
    ) -> Speech:
        """The whole speech, float32; raises as ``SpeechClient.synthesize`` does.

        ``deadline`` is what the server gives the stream, in seconds.
        ``reference`` and ``prompt_audio`` raise ``InvalidRequest``: use a gRPC client, or a stored voice.
        """
        body = {name: _json_value(name, values) for name, values in build_tensors(text, **options).items()}
        if deadline is not None:
            body["parameters"] = {"timeout": max(1, round(deadline * 1e6))}
        builder = SpeechBuilder()
        try:
            for response in self._responses(body | {"id": request_id} if request_id else body):
                builder.add(_chunk(response))
        except (InvalidRequest, ServerError) as e:
            # A model that is no pipeline answers in its own words.
            if getattr(e, "field", "") in body or self._is_pipeline():
                raise
            raise InvalidRequest("pipeline", f"{self.pipeline!r} is not a pipeline of the server") from e
        if builder.parts and not builder.finish_reason:
            raise ServerError(f"the stream ended without a finish reason after {len(builder.parts)} chunks")
        if builder.finish_reason == "cancelled":
            raise RequestCancelled("the server cancelled the request")
        return builder.speech()

    def voices(self) -> list[Voice]:
        """All voices of the server, built in and stored, also those that cannot be used."""
        return read_voices(self._ask_voices("list"))

    def voice(self, name: str) -> Voice:
        """One voice; raises ``VoiceNotFound`` where there is none."""
        return read_voice(self._ask_voices("show", name))

    def add_voice(self, name: str, **recordings: Unpack[Recordings]) -> Voice:
        """Stores a voice on the server; see ``SpeechClient.add_voice``."""
        return read_voice(self._ask_voices("add", name, **recordings))

    def remove_voice(self, name: str) -> None:
        """Removes a stored voice; raises ``VoiceNotFound`` where there is none."""
        self._ask_voices("remove", name)

    def _ask_voices(self, command: str, name: str | None = None, **recordings: Unpack[Recordings]) -> bytes:
        """One unary request; recordings follow its JSON as they are (Triton's binary tensor data)."""
        tensors = {key: array.item() for key, array in build_command(command, name, **recordings).items()}
        contents = [len(value).to_bytes(4, "little") + value for value in tensors.values()]
        inputs = [
            {"name": key, "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(content)}}
            for key, content in zip(tensors, contents, strict=True)
        ]
        head = json.dumps({"inputs": inputs, "outputs": [{"name": RESULT}]}).encode()
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(head)),
        }
        request = urllib.request.Request(f"{self.url}/v2/models/{MODEL}/infer", head + b"".join(contents), headers)
        with self._open(request, ADD_SECONDS) as reply:
            answer = _read_json(reply.read())
        try:
            return str(answer["outputs"][0]["data"][0]).encode()
        except (KeyError, IndexError, TypeError) as e:
            raise ServerError(f"a response lacks the output {RESULT}") from e

    def _responses(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The server-sent events of one request, as they come."""
        path = f"/v2/models/{urllib.parse.quote(self.pipeline, safe='')}/generate_stream"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with self._open(request, self.timeout) as reply:
            for line in reply:
                if line.startswith(b"data:"):
                    response = _read_json(line[len(b"data:") :])
                    if "error" in response:
                        raise error_from_text(response["error"])
                    yield response

    def _is_pipeline(self) -> bool:
        """Whether the model takes text and gives audio; True where nobody can tell."""
        path = f"/v2/models/{urllib.parse.quote(self.pipeline, safe='')}"
        try:
            with self._open(urllib.request.Request(self.url + path), self.timeout) as reply:
                model = _read_json(reply.read())
        except InvalidRequest:
            return False
        except SpeechClientError:
            return True
        names = {tensor.get("name") for kind in ("inputs", "outputs") for tensor in model.get(kind, ())}
        return {"TEXT", "AUDIO"} <= names

    @contextlib.contextmanager
    def _open(self, request: urllib.request.Request, limit: float) -> Iterator[Any]:
        """The reply to a request, with all that can go wrong on the way as this package's errors."""
        try:
            with urllib.request.urlopen(request, timeout=limit) as reply:
                yield reply
        except urllib.error.HTTPError as e:
            raise error_from_text(_error_text(e)) from e
        except TimeoutError as e:
            raise DeadlineExceeded(f"no response came within the timeout of {limit:g} s") from e
        except urllib.error.URLError as e:
            raise ServerUnavailable(f"no connection to the server at {self.url}: {e.reason}") from e
        except (ConnectionError, http.client.HTTPException) as e:
            raise ServerUnavailable(f"the connection to the server at {self.url} was lost: {e}") from e


def _json_value(name: str, values: np.ndarray[Any, Any]) -> Any:
    if values.dtype != np.object_:
        return values.tolist() if name == "CHUNK_SCHEDULE" else values.item()
    try:
        texts = [value.decode("utf-8") for value in values.flat]
        return texts[0] if len(texts) == 1 else texts
    except UnicodeDecodeError as e:
        raise InvalidRequest(name, "is not UTF-8 text, and JSON carries nothing else; use a gRPC client") from e


def _read_json(text: bytes) -> dict[str, Any]:
    """A JSON object; whatever else comes with status 200 is not from Triton."""
    try:
        answer = json.loads(text)
    except ValueError as e:
        raise ServerError("the server answered with something that is not JSON: is it Triton's HTTP port?") from e
    if not isinstance(answer, dict):
        raise ServerError("the server answered with JSON that is not an object: is it Triton's HTTP port?")
    return answer


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
    except (ValueError, TypeError) as e:
        raise ServerError("a response holds an output of a wrong type") from e


def _error_text(error: urllib.error.HTTPError) -> str:
    """What Triton says in the body of a refused request: JSON, or one event for an error of the model."""
    body = error.read().decode("utf-8", "replace").removeprefix("data:").strip()
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}: {body or error.reason}"
