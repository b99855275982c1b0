"""``/v1/audio/voices`` through OpenAI's own client and with plain HTTP, before a real server."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from triton_speech_client.gateway.settings import ApiKey

SPEECH = {"input": "Hello there.", "response_format": "pcm", "seed": 1, "max_seconds": 0.4}


@pytest.fixture(autouse=True)
def _no_voice_stays(speech_server: Any) -> Iterator[None]:
    yield
    for path in speech_server.voices.iterdir():
        path.unlink()


@pytest.fixture(scope="module")
def recording() -> bytes:
    time = np.arange(19_200) / 16_000
    file = io.BytesIO()
    wave = 0.1 * sum(np.sin(2 * np.pi * 200 * k * time) / k for k in range(1, 20))
    soundfile.write(file, wave, 16_000, format="WAV")
    return file.getvalue()


def names(gateway: Any) -> list[str]:
    return [voice["id"] for voice in httpx.get(f"{gateway.url}/v1/audio/voices").json()["data"]]


def test_openais_client_adds_a_voice_speaks_in_it_and_removes_it(gateway: Any, recording: bytes) -> None:
    client = gateway.openai()
    voice = client.audio.voices.create(
        name="ann", audio_sample=("ann.wav", recording, "audio/wav"), consent="consent_1"
    )
    assert (voice.id, voice.name, voice.object, voice.type) == ("ann", "ann", "audio.voice", "audio_sample")
    assert voice.created_at > 1_700_000_000
    assert "ann" in names(gateway)

    stored = gateway.post({**SPEECH, "voice": "ann"})
    given = gateway.post({**SPEECH, "reference_audio": base64.b64encode(recording).decode()})
    assert stored.content == given.content
    assert gateway.post({**SPEECH, "voice": {"id": "ann"}}).content == given.content

    deleted = client.audio.voices.delete("ann")
    assert (deleted.id, deleted.deleted, deleted.object) == ("ann", True, "audio.voice.deleted")
    assert "ann" not in names(gateway)
    assert gateway.post({**SPEECH, "voice": "ann"}).status_code == 404


def test_a_voice_may_come_as_json_with_its_transcript(gateway: Any, recording: bytes) -> None:
    audio = base64.b64encode(recording).decode()
    body = {"name": "bob", "prompt_audio": audio, "prompt_text": "Ah."}
    assert httpx.post(f"{gateway.url}/v1/audio/voices", json=body).json()["mode"] == "continuation"
    shown = httpx.get(f"{gateway.url}/v1/audio/voices/bob").json()
    assert (shown["id"], shown["prompt_text"], shown["problem"]) == ("bob", "Ah.", "")


def test_openais_voices_are_the_default_one_until_a_voice_is_called_so(gateway: Any, recording: bytes) -> None:
    default = gateway.post(SPEECH).content
    assert gateway.post({**SPEECH, "voice": "alloy"}).content == default
    audio = base64.b64encode(recording).decode()
    httpx.post(f"{gateway.url}/v1/audio/voices", json={"name": "alloy", "reference_audio": audio})
    assert gateway.post({**SPEECH, "voice": "alloy"}).content != default
    httpx.delete(f"{gateway.url}/v1/audio/voices/alloy")
    assert gateway.post({**SPEECH, "voice": "alloy"}).content == default


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "x"}, "reference_audio"),
        ({"name": "../x", "reference_audio": "AUDIO"}, "name"),
        ({"name": "x", "reference_audio": "aGFsbG8="}, "reference_audio"),
        ({"name": "x", "prompt_audio": "AUDIO"}, "prompt_text"),
        ({"name": "x", "type": "prompt", "prompt": "a calm voice"}, "type"),
    ],
)
def test_a_voice_that_cannot_be_is_400(gateway: Any, recording: bytes, body: dict[str, str], param: str) -> None:
    audio = base64.b64encode(recording).decode()
    filled = {name: audio if value == "AUDIO" else value for name, value in body.items()}
    answer = httpx.post(f"{gateway.url}/v1/audio/voices", json=filled)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_voice_that_is_not_there_is_404(gateway: Any) -> None:
    for method in ("GET", "DELETE"):
        answer = httpx.request(method, f"{gateway.url}/v1/audio/voices/nobody")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "voice_not_found"


def test_voices_are_changed_by_those_who_may(speech_server: Any, start_gateway: Any, recording: bytes) -> None:
    keys = (
        ApiKey(name="speaker", key="sk-only-speaks"),
        ApiKey(name="keeper", key="sk-keeps-voices", manage_voices=True),
    )
    with start_gateway(triton=speech_server.grpc_url, keys=keys) as gateway:
        speaker, keeper = gateway.openai("sk-only-speaks").audio.voices, gateway.openai("sk-keeps-voices").audio.voices
        sample = ("ann.wav", recording, "audio/wav")
        with pytest.raises(openai.PermissionDeniedError, match="manage_voices"):
            speaker.create(name="ann", audio_sample=sample, consent="x")
        assert keeper.create(name="ann", audio_sample=sample, consent="x").id == "ann"
        with pytest.raises(openai.PermissionDeniedError):
            speaker.delete("ann")
        assert keeper.delete("ann").deleted
        with pytest.raises(openai.AuthenticationError):
            gateway.openai("sk-nobody").audio.voices.delete("ann")
