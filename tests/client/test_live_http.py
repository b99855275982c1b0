"""The HTTP client against a real server."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from triton_speech_client import HttpSpeechClient, InvalidRequest, ServerError, ServerUnavailable, SpeechClient

TEXT = "Hello there."


def test_http_and_grpc_hear_the_same(speech_server: Any, client: SpeechClient) -> None:
    speech = HttpSpeechClient(speech_server.http_url).synthesize(TEXT, seed=2, max_seconds=1, chunk_schedule=[1])
    assert np.array_equal(speech.samples, client.synthesize(TEXT, seed=2, max_seconds=1).samples)
    assert (speech.sample_rate, speech.samples.dtype.name) == (48000, "float32")


def test_an_empty_text_raises_with_its_field(speech_server: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        HttpSpeechClient(speech_server.http_url).synthesize("")
    assert error.value.field == "TEXT"


def test_a_recording_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(InvalidRequest, match="use a gRPC client") as error:
        HttpSpeechClient().synthesize(TEXT, reference=(np.zeros(100, np.float32) - 0.1, 16000))
    assert error.value.field == "REFERENCE_AUDIO"


def test_an_unknown_pipeline_raises(speech_server: Any) -> None:
    with pytest.raises(InvalidRequest, match="nope"):
        HttpSpeechClient(speech_server.http_url, "nope").synthesize(TEXT)


@pytest.mark.parametrize("model", ["voices", "voxcpm2_frontend", "voxcpm2_talker", "voxcpm2_codec"])
def test_a_model_that_is_no_pipeline_is_named_as_such(speech_server: Any, model: str) -> None:
    """What the caller heard were the model's or Triton's words about fields that he had never sent."""
    with pytest.raises(InvalidRequest, match=f"'{model}' is not") as error:
        HttpSpeechClient(speech_server.http_url, model).synthesize(TEXT)
    assert error.value.field == "pipeline"


@pytest.mark.parametrize("body", [b"<html>Hello</html>", b"", b"data: <html>", b"data: [1]", b'data: {"AUDIO": "x"}'])
def test_an_answer_that_is_not_from_triton_is_a_server_error(body: bytes) -> None:
    """A wrong port with a friendly server behind it, or a proxy's page, came out as an error of the JSON parser."""

    class Friendly(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Friendly) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = HttpSpeechClient(f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(ServerError):
            client.synthesize(TEXT)
        with pytest.raises(ServerError):
            client.voices()
        server.shutdown()


def test_an_absent_server_is_unavailable(closed_port: int) -> None:
    with pytest.raises(ServerUnavailable, match=f"127.0.0.1:{closed_port}"):
        HttpSpeechClient(f"http://127.0.0.1:{closed_port}").synthesize(TEXT)
