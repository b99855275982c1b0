"""The blocking client against a real server."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from triton_speech_client import (
    DeadlineExceeded,
    InvalidRequest,
    ServerUnavailable,
    SpeechClient,
    VoiceNotFound,
)

TEXT = "The quick brown fox jumps over the lazy dog."
LONG_TEXT = " ".join([TEXT] * 5)
PIPELINES = ["voxcpm2", "voxcpm2_pipeline"]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_stream_yields_chunks_with_running_indices_and_one_finish_reason(speech_server: Any, pipeline: str) -> None:
    with SpeechClient(speech_server.grpc_url, pipeline) as client:
        chunks = list(client.stream(TEXT, seed=1, max_seconds=2))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert {chunk.finish_reason for chunk in chunks[:-1]} <= {""}
    assert chunks[-1].finish_reason in ("stop", "length")
    assert {(chunk.sample_rate, chunk.samples.dtype.name, chunk.samples.ndim) for chunk in chunks} == {
        (48000, "float32", 1)
    }


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_synthesize_is_the_stream_put_together(speech_server: Any, pipeline: str) -> None:
    with SpeechClient(speech_server.grpc_url, pipeline) as client:
        chunks = list(client.stream(TEXT, seed=7, max_seconds=2))
        speech = client.synthesize(TEXT, seed=7, max_seconds=2)
    assert np.array_equal(speech.samples, np.concatenate([chunk.samples for chunk in chunks]))
    assert speech.finish_reason == chunks[-1].finish_reason
    assert 0 < speech.duration <= 2.5
    assert 0 < speech.seconds_to_first_audio <= speech.wall_seconds


def test_pcm16_is_the_float_audio_in_sixteen_bits(client: SpeechClient) -> None:
    audio = client.synthesize(TEXT, seed=7, max_seconds=1).samples
    pcm16 = client.synthesize(TEXT, seed=7, max_seconds=1, pcm16=True).samples
    assert pcm16.dtype == np.int16
    assert np.array_equal(pcm16, np.clip(np.floor(audio * 32768.0), -32768, 32767).astype(np.int16))


def test_samples_may_be_given_as_reference(client: SpeechClient) -> None:
    tone = np.sin(np.arange(32000) * 0.05).astype(np.float32) * 0.3
    assert client.synthesize(TEXT, seed=1, max_seconds=1, reference=(tone, 16000)).duration > 0


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_an_empty_text_raises_with_its_field(speech_server: Any, pipeline: str) -> None:
    with SpeechClient(speech_server.grpc_url, pipeline) as client, pytest.raises(InvalidRequest) as error:
        client.synthesize("")
    assert error.value.field == "TEXT"
    assert "in ensemble" not in str(error.value)


def test_an_unknown_voice_raises_voice_not_found(client: SpeechClient) -> None:
    with pytest.raises(VoiceNotFound):
        client.synthesize(TEXT, voice="nobody")


@pytest.mark.parametrize("model", ["voices", "voxcpm2_frontend", "voxcpm2_talker", "voxcpm2_codec"])
@pytest.mark.parametrize("pcm16", [False, True])
def test_a_model_that_is_no_pipeline_lists_those_that_are(speech_server: Any, model: str, pcm16: bool) -> None:
    """What the caller heard were Triton's words about an output that he had not asked for."""
    with SpeechClient(speech_server.grpc_url, model) as client, pytest.raises(InvalidRequest) as error:
        list(client.stream(TEXT, pcm16=pcm16))
    assert error.value.field == "pipeline"
    assert all(pipeline in error.value.message for pipeline in PIPELINES)


def test_an_unknown_pipeline_lists_the_pipelines_of_the_server(speech_server: Any) -> None:  # T10
    with SpeechClient(speech_server.grpc_url, "nope") as client, pytest.raises(InvalidRequest) as error:
        client.synthesize(TEXT)
    assert error.value.field == "pipeline"
    assert all(pipeline in error.value.message for pipeline in PIPELINES)


def test_one_streams_error_leaves_the_others_alone(speech_server: Any) -> None:  # T38
    with SpeechClient(speech_server.grpc_url) as one, SpeechClient(speech_server.grpc_url) as other:
        chunks = one.stream(TEXT, seed=3, max_seconds=2)
        first = next(chunks)
        for failing in (one, other):
            with pytest.raises(InvalidRequest):
                failing.synthesize("")
        other.close()
        rest = list(chunks)
    assert [chunk.index for chunk in [first, *rest]] == list(range(len(rest) + 1))
    assert [first, *rest][-1].finish_reason in ("stop", "length")


def test_one_client_serves_many_threads(client: SpeechClient) -> None:
    durations: dict[int, float] = {}

    def speak(seed: int) -> None:
        durations[seed] = client.synthesize(TEXT, seed=seed, max_seconds=1).duration

    threads = [threading.Thread(target=speak, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(durations) == [0, 1, 2, 3]
    assert all(duration > 0 for duration in durations.values())


def test_leaving_a_stream_early_leaves_the_server_working(client: SpeechClient) -> None:  # T27
    for _ in range(5):
        for _chunk in client.stream(LONG_TEXT):
            break
    assert client.synthesize(TEXT, seed=1, max_seconds=1).duration > 0


def test_streams_left_early_leave_no_threads(client: SpeechClient) -> None:
    client.synthesize(TEXT, max_seconds=0.5)
    for _ in range(5):
        chunks = client.stream(LONG_TEXT)
        next(chunks)
        chunks.close()
    workers = [thread for thread in threading.enumerate() if thread.name == "speech-stream"]
    for thread in workers:
        thread.join(5)
    assert not [thread for thread in workers if thread.is_alive()]


def test_a_deadline_cancels_and_leaves_the_server_working(client: SpeechClient) -> None:  # T27
    with pytest.raises(DeadlineExceeded, match=r"0\.001 s"):
        client.synthesize(LONG_TEXT, deadline=0.001)
    assert client.synthesize(TEXT, seed=1, max_seconds=1).duration > 0


def test_readiness_and_models(client: SpeechClient) -> None:
    assert client.is_ready()
    assert "voxcpm2" in client.models()
    assert set(PIPELINES) <= set(client.pipelines())


def test_an_absent_server_is_unavailable_and_never_ready(closed_port: int) -> None:
    with SpeechClient(f"127.0.0.1:{closed_port}") as client:
        assert not client.is_ready()
        with pytest.raises(ServerUnavailable, match=f"127.0.0.1:{closed_port}"):
            client.synthesize(TEXT)
        with pytest.raises(ServerUnavailable, match=r"after 0\.2 s"):
            client.wait_ready(0.2)
