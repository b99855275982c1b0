"""``POST /v1/audio/speech`` through OpenAI's own client and with plain HTTP, before a real server."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
import soundfile

from triton_speech_client import SpeechClient

TEXT = "The quick brown fox jumps over the lazy dog."
SHORT = {"seed": 7, "max_seconds": 1.0}
MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
# What a decoder gives: Opus always runs at 48 kHz, and OpenAI's raw PCM is at 24.
RATES = {"pcm": 24000}
CODEC_PADDING_SECONDS = 0.1


def decoded(data: bytes, name: str) -> tuple[Any, int]:
    """Float samples and their rate in Hz."""
    if name == "pcm":
        return np.frombuffer(data, "<i2") / 32768, RATES["pcm"]
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    resampler = av.AudioResampler(format="flt", layout="mono")
    samples = [out.to_ndarray()[0] for frame in frames for out in resampler.resample(frame)]
    return np.concatenate(samples), frames[0].sample_rate


@pytest.fixture(scope="module")
def expected(speech_server: Any) -> Any:
    """The same speech from Triton itself, int16 at 48 kHz."""
    with SpeechClient(speech_server.grpc_url) as client:
        return client.synthesize(TEXT, pcm16=True, **SHORT)


@pytest.mark.parametrize("name", MEDIA_TYPES)
def test_openais_client_writes_a_valid_file_in_every_format(
    gateway: Any, expected: Any, name: str, tmp_path: Path
) -> None:
    path = tmp_path / f"speech.{name}"
    speech = gateway.openai().audio.speech
    with speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, response_format=name, extra_body=SHORT
    ) as response:
        response.stream_to_file(path)
        assert response.headers["content-type"] == MEDIA_TYPES[name]
    samples, rate = decoded(path.read_bytes(), name)
    assert rate == RATES.get(name, expected.sample_rate)
    assert len(samples) / rate == pytest.approx(expected.duration, abs=CODEC_PADDING_SECONDS)
    # Noise, as random weights make it, loses what lies above the lower rate's limit.
    loudness = np.sqrt(np.mean((expected.samples / 32768) ** 2))
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(loudness, rel=0.4)


@pytest.mark.parametrize("name", ["wav", "flac", "mp3", "opus"])
def test_a_whole_file_tells_its_length(gateway: Any, expected: Any, name: str) -> None:
    answer = gateway.post({"input": TEXT, "response_format": name, "stream": False, **SHORT})
    assert int(answer.headers["content-length"]) == len(answer.content)
    info = soundfile.info(io.BytesIO(answer.content))
    assert info.duration == pytest.approx(expected.duration, abs=CODEC_PADDING_SECONDS)


def test_a_streamed_wav_is_what_triton_gave_sample_for_sample(gateway: Any, expected: Any) -> None:
    samples, rate = soundfile.read(
        io.BytesIO(gateway.post({"input": TEXT, "response_format": "wav", **SHORT}).content), dtype="int16"
    )
    assert rate == expected.sample_rate
    assert np.array_equal(samples, expected.samples)


def test_pcm_comes_at_the_rate_that_was_asked_for(gateway: Any, expected: Any) -> None:
    answer = gateway.post({"input": TEXT, "response_format": "pcm", "sample_rate": 48000, **SHORT})
    assert answer.headers["x-sample-rate"] == "48000"
    assert answer.content == expected.samples.tobytes()


def test_audio_arrives_while_it_is_made(gateway: Any) -> None:
    body = {"input": "word " * 5, "response_format": "pcm", "seed": 1, "inference_steps": 25}
    with httpx.stream("POST", f"{gateway.url}/v1/audio/speech", json=body, timeout=60) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        still_made = gateway.shared.access.house.active
        rest = sum(len(piece) for piece in pieces)
    assert still_made == 1
    assert rest > 0


def test_server_sent_events_carry_the_same_bytes(gateway: Any) -> None:
    body = {"input": TEXT, "response_format": "pcm", **SHORT}
    answer = gateway.post({**body, "stream_format": "sse"})
    assert answer.headers["content-type"] == "text/event-stream"
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    deltas = [event for event in events if event["type"] == "speech.audio.delta"]
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == gateway.post(body).content
    assert [event["type"] for event in events[len(deltas) :]] == ["speech.audio.done"]
    assert events[-1]["usage"]["input_characters"] == len(TEXT)
    assert events[-1]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("speed", [0.25, 0.5, 2.0, 4.0])
def test_speed_stretches_time(gateway: Any, expected: Any, speed: float) -> None:
    answer = gateway.post({"input": TEXT, "response_format": "wav", "speed": speed, **SHORT})
    assert soundfile.info(io.BytesIO(answer.content)).duration == pytest.approx(expected.duration / speed, rel=0.15)


def recording() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(np.arange(32_000) * 0.05), 16_000, format="WAV")
    return file.getvalue()


def test_a_recording_may_be_base64_a_data_uri_or_a_file_in_a_form(gateway: Any, speech_server: Any) -> None:
    with SpeechClient(speech_server.grpc_url) as client:
        expected = client.synthesize(TEXT, reference=recording(), pcm16=True, **SHORT).samples.tobytes()
    body = {"input": TEXT, "response_format": "pcm", "sample_rate": 48000, **SHORT}
    text = base64.b64encode(recording()).decode()
    form = httpx.post(
        f"{gateway.url}/v1/audio/speech", data=body, files={"reference_audio": ("me.wav", recording())}, timeout=60
    )
    answers = [
        gateway.post({**body, "reference_audio": text}),
        gateway.post({**body, "reference_audio": f"data:audio/wav;base64,{text}"}),
        form,
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert all(answer.content == expected for answer in answers)


def test_a_prompt_is_continued(gateway: Any, speech_server: Any) -> None:
    with SpeechClient(speech_server.grpc_url) as client:
        expected = client.synthesize(TEXT, prompt_audio=recording(), prompt_text="Hm.", pcm16=True, **SHORT)
    prompt = {"prompt_audio": base64.b64encode(recording()).decode(), "prompt_text": "Hm."}
    answer = gateway.post({"input": TEXT, "response_format": "pcm", "sample_rate": 48000, **SHORT, **prompt})
    assert answer.content == expected.samples.tobytes()


def test_models_are_the_servers_pipelines_and_openais_names(gateway: Any) -> None:
    models = gateway.openai().models
    names = [model.id for model in models.list()]
    assert names == ["voxcpm2", "voxcpm2_pipeline", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert models.retrieve("tts-1").id == "tts-1"


@pytest.mark.parametrize("model", ["voxcpm2", "voxcpm2_pipeline", "gpt-4o-mini-tts"])
def test_every_model_speaks(gateway: Any, model: str) -> None:
    speech = gateway.openai().audio.speech.create(
        model=model, voice={"id": "alloy"}, input=TEXT, instructions="calm", response_format="pcm", extra_body=SHORT
    )
    assert len(speech.content) > 0


def test_unicode_goes_through(gateway: Any) -> None:
    answer = gateway.post({"input": "Grüße, 你好! \U0001f600 مرحبا", "response_format": "pcm", **SHORT})
    assert answer.status_code == 200


def test_the_request_id_is_the_callers_or_a_fresh_one(gateway: Any) -> None:
    body = {"input": TEXT, **SHORT}
    assert gateway.post(body, headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    fresh = gateway.post(body, headers={"X-Request-Id": "no good id"}).headers["x-request-id"]
    assert len(fresh) == 32


def test_health_and_metrics(gateway: Any) -> None:
    gateway.post({"input": TEXT, **SHORT})
    assert httpx.get(f"{gateway.url}/health").json() == {"status": "ok"}
    shown = httpx.get(f"{gateway.url}/metrics").text
    assert 'triton_speech_gateway_requests_total{route="/v1/audio/speech",status="200"}' in shown
    assert 'triton_speech_gateway_first_audio_seconds_count{format="mp3"}' in shown
    assert "triton_speech_gateway_active_utterances 0.0" in shown
    assert "quick brown" not in shown
