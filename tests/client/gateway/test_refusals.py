"""What the gateway refuses: always OpenAI's error shape, with the status that tells what to do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from triton_speech_client.gateway import middleware
from triton_speech_client.gateway.settings import ApiKey

TEXT = "Hello there."
# Runs for many seconds on any machine, unless it is cancelled.
SLOW = {"input": "word " * 45, "response_format": "pcm", "seed": 1, "inference_steps": 100}
KEYS = (
    ApiKey(name="plenty", key="sk-plenty-of-it"),
    ApiKey(name="few", key="sk-few-requests", requests_per_minute=2),
    ApiKey(name="short", key="sk-short-texts", characters_per_minute=20),
    ApiKey(name="single", key="sk-single-file", max_concurrent=1),
)


@pytest.fixture(scope="module")
def small(speech_server: Any, start_gateway: Any) -> Iterator[Any]:
    with start_gateway(triton=speech_server.grpc_url, max_body_bytes=100_000, body_seconds=0.5) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def guarded(speech_server: Any, start_gateway: Any) -> Iterator[Any]:
    with start_gateway(triton=speech_server.grpc_url, keys=KEYS) as gateway:
        yield gateway


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error object, after a look at its shape."""
    body = answer.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert answer.headers["x-request-id"]
    return dict(body["error"])


BAD_FIELDS = [
    ({}, "input", "input: is missing"),
    ({"input": 5}, "input", "input: input should be a valid string"),
    ({"input": ""}, "input", "input: is empty"),
    ({"input": " \n"}, "input", "input: is blank"),
    ({"input": "x" * 4097}, "input", "input: has 4097 characters, at most 4096 are allowed"),
    ({"input": TEXT, "cfgvalue": 2}, "cfgvalue", "cfgvalue: is not known"),
    ({"input": TEXT, "response_format": "wma"}, "response_format", "response_format: input should be 'mp3', 'opus'"),
    ({"input": TEXT, "stream_format": "json"}, "stream_format", "stream_format: input should be 'audio' or 'sse'"),
    ({"input": TEXT, "speed": 5}, "speed", "speed: input should be less than or equal to 4"),
    ({"input": TEXT, "speed": "fast"}, "speed", "speed: input should be a valid number"),
    ({"input": TEXT, "seed": -1}, "seed", "seed: input should be greater than or equal to 0"),
    ({"input": TEXT, "seed": True}, "seed", "seed: input should be a valid integer"),
    ({"input": TEXT, "cfg_value": 99}, "cfg_value", "cfg_value: 99 is out of range, allowed is 0 to 10"),
    ({"input": TEXT, "voice": [7]}, "voice", "voice: "),
    ({"input": TEXT, "voice": ["default", "default"]}, "voice", "voice: "),
    ({"input": TEXT, "voice": "../x"}, "voice", "voice: '../x' is not a voice's name"),
    ({"input": TEXT, "prompt_text": "x"}, "prompt_audio", "prompt_audio: is missing; prompt_text is the transcript"),
    ({"input": TEXT, "reference_audio": "%"}, "reference_audio", "reference_audio: is not base64"),
    ({"input": TEXT, "reference_audio": "aGFsbG8="}, "reference_audio", "reference_audio: is not an audio file"),
    ({"input": TEXT, "reference_audio": "https://x.org/a.wav"}, "reference_audio", "reference_audio: is a URL"),
    ({"input": TEXT, "response_format": "opus", "sample_rate": 44100}, "sample_rate", "sample_rate: 44100 is not"),
]


@pytest.mark.parametrize(("body", "param", "message"), BAD_FIELDS)
def test_a_wrong_field_is_400_and_named(gateway: Any, body: Any, param: str, message: str) -> None:
    answer = gateway.post(body)
    error = error_of(answer)
    assert answer.status_code == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"].startswith(message)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"input":"\\ud800"}', b'{"a":NaN}', b"[" * 9999]
)
def test_what_is_no_json_object_is_400(gateway: Any, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{gateway.url}/v1/audio/speech", content=content, headers=headers)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "invalid_json"


def test_a_form_that_is_none_is_400(gateway: Any) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    for content in (b"", b"nothing", b"--x\r\nnonsense\r\n\r\n1\r\n--x--\r\n"):
        answer = httpx.post(f"{gateway.url}/v1/audio/speech", content=content, headers=headers)
        assert answer.status_code == 400
        error_of(answer)
    no_boundary = httpx.post(
        f"{gateway.url}/v1/audio/speech", content=b"x", headers={"Content-Type": "multipart/form-data"}
    )
    assert no_boundary.status_code == 400


def test_a_body_of_another_type_is_415(gateway: Any) -> None:
    answer = httpx.post(f"{gateway.url}/v1/audio/speech", content=b'{"input":"x"}')
    assert answer.status_code == 415
    assert "application/json" in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("body", "code"), [({"model": "nope"}, "model_not_found"), ({"voice": "nobody"}, "voice_not_found")]
)
def test_an_unknown_model_or_voice_is_404(gateway: Any, body: dict[str, str], code: str) -> None:
    answer = gateway.post({"input": TEXT, **body})
    assert answer.status_code == 404
    assert error_of(answer)["code"] == code
    assert next(iter(body)) == error_of(answer)["param"]


def test_unknown_routes_and_methods_have_the_shape_too(gateway: Any) -> None:
    assert error_of(httpx.get(f"{gateway.url}/v1/nope"))["code"] == "not_found"
    assert error_of(httpx.put(f"{gateway.url}/v1/audio/speech"))["code"] == "method_not_allowed"
    assert error_of(httpx.get(f"{gateway.url}/v1/models/nope"))["code"] == "model_not_found"


def test_openais_client_raises_its_own_errors(gateway: Any) -> None:
    speech = gateway.openai().audio.speech
    with pytest.raises(openai.BadRequestError, match="input: is empty"):
        speech.create(model="tts-1", voice="alloy", input="")
    with pytest.raises(openai.NotFoundError, match="'nope' is not offered"):
        speech.create(model="nope", voice="alloy", input=TEXT)


def test_an_absent_server_is_503(start_gateway: Any, closed_port: int) -> None:
    with start_gateway(triton=f"127.0.0.1:{closed_port}") as gateway:
        answer = gateway.post({"input": TEXT})
        assert answer.status_code == 503
        assert error_of(answer)["code"] == "unavailable"
        assert str(closed_port) not in answer.text
        assert answer.headers["retry-after"]
        assert httpx.get(f"{gateway.url}/health").status_code == 503
        with pytest.raises(openai.InternalServerError):
            gateway.openai().models.list()


class TestBodies:
    """Bodies that are too long, or come too slowly."""

    def test_a_long_body_is_413(self, small: Any) -> None:
        answer = small.post({"input": TEXT, "reference_audio": "A" * 200_000})
        assert answer.status_code == 413
        assert error_of(answer)["code"] == "body_too_large"

    def test_a_long_body_of_unknown_length_is_413(self, small: Any) -> None:
        def pieces() -> Iterator[bytes]:
            for _ in range(300):
                yield b" " * 1000

        headers = {"Content-Type": "application/json"}
        answer = httpx.post(f"{small.url}/v1/audio/speech", content=pieces(), headers=headers)
        assert answer.status_code == 413
        error_of(answer)

    def test_a_long_recording_in_a_form_is_413(self, small: Any) -> None:
        files = {"reference_audio": ("a.wav", b"x" * 300_000)}
        answer = httpx.post(f"{small.url}/v1/audio/speech", data={"input": TEXT}, files=files)
        assert answer.status_code == 413

    def test_openais_client_hears_of_a_huge_body(self, small: Any) -> None:
        with pytest.raises(openai.APIStatusError) as error:
            small.openai().audio.speech.create(
                model="tts-1", voice="alloy", input=TEXT, extra_body={"reference_audio": "A" * 5_000_000}
            )
        assert error.value.status_code == 413

    def test_a_body_that_does_not_come_is_408(self, small: Any) -> None:
        host, port = small.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(
                b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b'Content-Length: 50\r\n\r\n{"input":'
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 408 ")

    def test_a_huge_body_that_does_not_come_is_413(self, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(middleware, "_DRAIN_SECONDS", 0.3)
        host, port = small.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")

    def test_a_client_that_closes_half_of_its_socket_harms_nobody(self, small: Any) -> None:
        host, port = small.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
        assert small.post({"input": TEXT, "max_seconds": 0.3}).status_code == 200


class TestKeys:
    """Who is let in, and how much he may use."""

    @pytest.mark.parametrize(
        "header", [None, "", "Bearer", "Bearer sk-wrong-key", "Basic sk-plenty-of-it", "Bearer \xe4"]
    )
    @pytest.mark.parametrize(("method", "path"), [("POST", "/v1/audio/speech"), ("GET", "/v1/models")])
    def test_no_key_or_a_wrong_one_is_401(self, guarded: Any, method: str, path: str, header: str | None) -> None:
        headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
        answer = httpx.request(method, guarded.url + path, headers=headers)
        assert answer.status_code == 401
        assert error_of(answer)["code"] == "invalid_api_key"
        assert "sk-" not in answer.text

    def test_a_known_key_is_let_in(self, guarded: Any) -> None:
        assert guarded.openai("sk-plenty-of-it").models.list().data
        with pytest.raises(openai.AuthenticationError):
            guarded.openai("sk-wrong").models.list()

    def test_page_health_and_metrics_need_no_key(self, guarded: Any) -> None:
        assert [httpx.get(guarded.url + path).status_code for path in ("/", "/health", "/metrics")] == [200] * 3

    def test_requests_of_a_minute_are_counted(self, guarded: Any) -> None:
        headers = {"Authorization": "Bearer sk-few-requests"}
        answers = [guarded.post({"input": "Hi.", "max_seconds": 0.2}, headers=headers) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert error_of(answers[-1])["type"] == "rate_limit_error"
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 30

    def test_characters_of_a_minute_are_counted(self, guarded: Any) -> None:
        headers = {"Authorization": "Bearer sk-short-texts"}
        statuses = [
            guarded.post({"input": "x" * length, "max_seconds": 0.2}, headers=headers).status_code
            for length in (21, 15, 15)
        ]
        assert statuses == [429, 200, 429]

    def test_utterances_at_once_are_counted_and_come_free_again(self, guarded: Any) -> None:
        headers = {"Authorization": "Bearer sk-single-file"}
        with httpx.stream("POST", f"{guarded.url}/v1/audio/speech", json=SLOW, headers=headers, timeout=60) as first:
            pieces = first.iter_raw()
            next(pieces)
            assert guarded.post({"input": "Hi."}, headers=headers).status_code == 429
        short = {"input": "Hi.", "max_seconds": 0.2}
        statuses = [guarded.post(short, headers=headers).status_code for _ in range(50)]
        assert 200 in statuses

    def test_the_names_of_keys_stand_in_the_metrics_and_the_keys_do_not(self, guarded: Any) -> None:
        guarded.post({"input": "Hi.", "max_seconds": 0.2}, headers={"Authorization": "Bearer sk-plenty-of-it"})
        shown = httpx.get(f"{guarded.url}/metrics").text
        assert 'caller="plenty"' in shown
        assert "sk-" not in shown


def test_a_full_gateway_is_503(speech_server: Any, start_gateway: Any) -> None:
    with (
        start_gateway(triton=speech_server.grpc_url, max_concurrent=1) as gateway,
        httpx.stream("POST", f"{gateway.url}/v1/audio/speech", json=SLOW, timeout=60) as first,
    ):
        pieces = first.iter_raw()
        next(pieces)
        answer = gateway.post({"input": TEXT})
    assert answer.status_code == 503
    assert error_of(answer)["code"] == "overloaded"
    assert answer.headers["retry-after"]


class TestOrigins:
    """Other web sites' pages, whose forms and WebSockets no browser holds back."""

    def test_a_foreign_page_may_not_ask(self, gateway: Any) -> None:
        for origin in ("https://evil.example", "null"):
            answer = gateway.post({"input": TEXT}, headers={"Origin": origin})
            assert answer.status_code == 403
            assert error_of(answer)["code"] == "origin_not_allowed"

    def test_no_page_is_given_leave_by_default(self, gateway: Any) -> None:
        headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        answer = httpx.options(f"{gateway.url}/v1/audio/speech", headers=headers)
        assert "access-control-allow-origin" not in answer.headers

    def test_the_gateways_own_page_may(self, gateway: Any) -> None:
        answer = gateway.post({"input": TEXT, "max_seconds": 0.2}, headers={"Origin": gateway.url})
        assert answer.status_code == 200

    def test_an_origin_that_was_named_may(self, speech_server: Any, start_gateway: Any) -> None:
        origin = "https://app.example"
        with start_gateway(triton=speech_server.grpc_url, cors_origins=(origin,)) as gateway:
            answer = gateway.post({"input": TEXT, "max_seconds": 0.2}, headers={"Origin": origin})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
