"""Live text over a WebSocket: pieces of text in, audio out as soon as a segment is complete."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import soundfile
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from triton_speech_client import SpeechClient
from triton_speech_client.gateway.settings import ApiKey

SECONDS = 30
VOICE = {"seed": 7, "max_seconds": 1.0, "sample_rate": 48000}
SLOW = {"seed": 1, "inference_steps": 100}
MESSAGE_BYTES = 2**22


class Session:
    """A connection, and what has come over it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.events: list[dict[str, Any]] = []
        self.audio: dict[int, bytes] = {}
        self.speaking = 0

    def send(self, kind: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": kind, **fields}))

    def take(self) -> Any:
        """The next message: an event, or bytes that belong to the utterance that is spoken."""
        message = self.connection.recv(SECONDS)
        if isinstance(message, bytes):
            self.audio[self.speaking] = self.audio.get(self.speaking, b"") + message
            return message
        event = json.loads(message)
        self.events.append(event)
        if event["type"] == "utterance.started":
            self.speaking = event["utterance"]
        return event

    def until(self, kind: str) -> dict[str, Any]:
        while not (isinstance(event := self.take(), dict) and event["type"] == kind):
            pass
        return event

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


@pytest.fixture
def session(gateway: Any) -> Any:
    with connect(gateway.ws_url, max_size=MESSAGE_BYTES) as connection:
        session = Session(connection)
        session.until("session.created")
        yield session


def test_segments_are_what_triton_says_for_each_alone_in_one_voice(session: Session, speech_server: Any) -> None:
    session.send("session.config", voice="alloy", **VOICE)
    assert session.until("session.configured") == {"type": "session.configured", "model": "voxcpm2", "seed": 7}
    for piece in ("Dr. Smi", "th is here. Ho", "w are you", "? Fi", "ne"):
        session.send("input.text", text=piece)
    session.send("input.done")
    done = session.until("utterance.done")

    texts = ["Dr. Smith is here.", "How are you?", "Fine"]
    assert [event["text"] for event in session.of("segment.started")] == texts
    with SpeechClient(speech_server.grpc_url) as client:
        alone = [client.synthesize(text, pcm16=True, seed=7, max_seconds=1.0) for text in texts]
    assert session.audio[1] == b"".join(speech.samples.tobytes() for speech in alone)
    assert [event["finish_reason"] for event in session.of("segment.done")] == [one.finish_reason for one in alone]
    assert (done["status"], done["segments"]) == ("completed", 3)
    assert done["seconds"] == pytest.approx(sum(speech.duration for speech in alone), abs=0.002)


def test_audio_comes_before_the_text_has_ended(session: Session) -> None:
    session.send("session.config", **VOICE)
    session.send("input.text", text="This is first. And")
    started = session.until("utterance.started")
    assert started == {
        "type": "utterance.started",
        "utterance": 1,
        "format": "pcm",
        "media_type": "audio/pcm",
        "sample_rate": 48000,
    }
    session.until("segment.done")
    assert session.audio[1]
    session.send("input.text", text=" this is second.")
    session.send("input.done")
    session.until("utterance.done")
    assert [event["text"] for event in session.of("segment.started")] == ["This is first.", "And this is second."]


def test_flush_speaks_what_is_pending_and_leaves_the_utterance_open(session: Session) -> None:
    session.send("session.config", **VOICE)
    session.send("input.text", text="and then")
    session.send("input.flush")
    session.until("segment.done")
    session.send("input.text", text="it was over")
    session.send("input.done")
    assert session.until("utterance.done")["segments"] == 2


def test_utterances_are_spoken_one_after_another_each_a_file_of_its_own(session: Session) -> None:
    session.send("session.config", response_format="wav", **VOICE)
    for text in ("One. Two.", "Three."):
        session.send("input.text", text=text)
        session.send("input.done")
    session.until("utterance.done")
    session.until("utterance.done")
    assert [event["utterance"] for event in session.of("utterance.done")] == [1, 2]
    for number, done in enumerate(session.of("utterance.done"), 1):
        samples, rate = soundfile.read(io.BytesIO(session.audio[number]), dtype="int16")
        assert rate == 48000
        assert len(samples) / rate == pytest.approx(done["seconds"], abs=0.002)
        assert np.any(samples)


def test_a_voice_without_a_seed_is_one_for_the_session(session: Session) -> None:
    session.send("session.config", max_seconds=0.5)
    seed = session.until("session.configured")["seed"]
    for _ in range(2):
        session.send("input.text", text="Again.")
        session.send("input.done")
        session.until("utterance.done")
    assert session.audio[1] == session.audio[2]
    assert isinstance(seed, int)


def test_barge_in_ends_everything_that_was_said_and_the_session_goes_on(session: Session) -> None:
    session.send("session.config", **SLOW)
    session.send("input.text", text="word " * 45)
    session.send("input.done")
    session.send("input.text", text="This one waits.")
    session.send("input.done")
    session.until("utterance.started")
    session.take()
    session.send("input.cancel")
    assert session.until("input.cancelled")["utterances"] == [1, 2]
    assert [(event["utterance"], event["status"]) for event in session.of("utterance.done")] == [
        (1, "cancelled"),
        (2, "cancelled"),
    ]
    session.send("session.config", **VOICE)
    session.send("input.text", text="Yes?")
    session.send("input.done")
    session.until("session.configured")
    # Nothing of the others is heard any more.
    assert isinstance(session.take(), dict)
    assert session.until("utterance.done")["utterance"] == 3


def test_barge_in_on_silence_is_answered(session: Session) -> None:
    session.send("input.cancel")
    assert session.until("input.cancelled")["utterances"] == []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        (b"audio", "invalid_event"),
        ('{"type": "nope"}', "invalid_event"),
        ('{"type": ["x"]}', "invalid_event"),
        ("{}", "invalid_event"),
        ('{"type": "input.text"}', "invalid_value"),
        ('{"type": "input.text", "text": 5}', "invalid_value"),
        ('{"type": "input.done"}', "invalid_event"),
        ('{"type": "session.config", "speed": 100}', "invalid_value"),
        ('{"type": "session.config", "color": "red"}', "unknown_parameter"),
        ('{"type": "session.config", "model": "nope"}', "model_not_found"),
    ],
)
def test_a_wrong_event_is_answered_and_the_session_goes_on(session: Session, message: Any, code: str) -> None:
    session.connection.send(message)
    error = session.until("error")["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["code"] == code
    session.send("session.config", **VOICE)
    session.send("input.text", text="Good.")
    session.send("input.done")
    assert session.until("utterance.done")["status"] == "completed"


def test_an_utterance_that_fails_says_so_and_the_next_one_is_spoken(session: Session) -> None:
    session.send("session.config", voice="nobody")
    session.send("input.text", text="Hello.")
    session.send("input.done")
    assert session.until("error")["error"]["code"] == "voice_not_found"
    assert session.until("utterance.done")["status"] == "failed"
    session.send("session.config", **VOICE)
    session.send("input.text", text="Hello.")
    session.send("input.done")
    assert session.until("utterance.done")["status"] == "completed"


def test_an_utterance_without_words_is_over_at_once(session: Session) -> None:
    session.send("input.text", text=" ... ")
    session.send("input.done")
    assert session.until("utterance.done")["segments"] == 0


def test_an_utterance_has_a_longest_text(session: Session) -> None:
    session.send("input.text", text="x" * 4097)
    assert session.until("error")["error"]["code"] == "string_above_max_length"


def test_a_voice_cannot_change_in_the_middle(session: Session) -> None:
    session.send("session.config", **SLOW)
    session.send("input.text", text="One")
    session.send("session.config", **VOICE)
    assert session.until("error")["error"]["code"] == "invalid_event"
    session.send("input.done")
    session.send("session.config", **VOICE)
    assert session.until("error")["error"]["code"] == "invalid_event"


@pytest.fixture(scope="module")
def guarded(speech_server: Any, start_gateway: Any) -> Any:
    key = ApiKey(name="one", key="sk-live-session", characters_per_minute=30)
    with start_gateway(triton=speech_server.grpc_url, keys=(key,), max_sessions=1, idle_seconds=0.5) as gateway:
        yield gateway


def test_a_session_without_a_key_is_refused(guarded: Any) -> None:
    with pytest.raises(InvalidStatus) as refusal, connect(guarded.ws_url):
        pass
    assert refusal.value.response.status_code == 401
    assert json.loads(refusal.value.response.body)["error"]["code"] == "invalid_api_key"


def test_a_browser_sends_the_key_as_a_subprotocol(guarded: Any) -> None:
    protocols = ["triton-speech", "openai-insecure-api-key.sk-live-session"]
    with connect(guarded.ws_url, subprotocols=protocols) as connection:
        assert connection.subprotocol == "triton-speech"
        assert json.loads(connection.recv(SECONDS))["type"] == "session.created"


def test_characters_are_counted_by_key(guarded: Any) -> None:
    with connect(guarded.ws_url, additional_headers={"Authorization": "Bearer sk-live-session"}) as connection:
        session = Session(connection)
        session.send("session.config", max_seconds=0.3)
        session.send("input.text", text="This one may be spoken. But this one is too much.")
        session.send("input.done")
        assert session.until("error")["error"]["code"] == "rate_limit_exceeded"
        assert session.until("utterance.done")["status"] == "failed"


def test_sessions_have_a_limit_and_idle_ones_are_closed(guarded: Any) -> None:
    headers = {"Authorization": "Bearer sk-live-session"}
    with connect(guarded.ws_url, additional_headers=headers) as connection:
        session = Session(connection)
        session.until("session.created")
        with pytest.raises(InvalidStatus) as refusal, connect(guarded.ws_url, additional_headers=headers):
            pass
        assert refusal.value.response.status_code == 503
        with pytest.raises(Exception, match="1001"):
            session.take()


def test_an_utterance_that_waits_for_text_is_idle_too(guarded: Any) -> None:
    with connect(guarded.ws_url, additional_headers={"Authorization": "Bearer sk-live-session"}) as connection:
        session = Session(connection)
        session.send("input.text", text="and")
        with pytest.raises(Exception, match="1001"):
            session.until("utterance.done")


def test_a_page_of_another_site_is_refused(gateway: Any) -> None:
    with pytest.raises(InvalidStatus) as refusal, connect(gateway.ws_url, origin="https://evil.example"):
        pass
    assert refusal.value.response.status_code == 403
