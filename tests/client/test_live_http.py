"""The HTTP client against a real server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from triton_speech_client import HttpSpeechClient, InvalidRequest, ServerUnavailable, SpeechClient

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


def test_an_absent_server_is_unavailable(closed_port: int) -> None:
    with pytest.raises(ServerUnavailable, match=f"127.0.0.1:{closed_port}"):
        HttpSpeechClient(f"http://127.0.0.1:{closed_port}").synthesize(TEXT)
