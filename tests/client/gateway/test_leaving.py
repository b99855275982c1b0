"""Callers who leave, and callers who do not read: neither costs the server its work or the gateway its memory."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tritonclient.grpc import InferenceServerClient
from websockets.sync.client import connect

# Runs for many seconds on any machine, unless it is cancelled.
SLOW = {"input": "word " * 45, "response_format": "pcm", "seed": 1, "inference_steps": 100}
WAIT_SECONDS = 30


def chunks_made(server: Any) -> int:
    """How many chunks the codec has been given since its start."""
    with InferenceServerClient(server.grpc_url) as client:
        (model,) = client.get_inference_statistics("voxcpm2_codec").model_stats
    return int(model.inference_stats.success.count)


def wait_until_idle(gateway: Any) -> None:
    """Returns once the gateway makes no utterance."""
    limit = time.monotonic() + WAIT_SECONDS
    while gateway.shared.access.house.active:
        assert time.monotonic() < limit
        time.sleep(0.005)


@pytest.fixture(scope="module")
def whole(gateway: Any, speech_server: Any) -> int:
    """Chunks of the slow speech, had nobody left it. One that is as long and quicker tells as much."""
    before = chunks_made(speech_server)
    assert gateway.post({**SLOW, "inference_steps": 2}).status_code == 200
    return chunks_made(speech_server) - before


def leave_while_bytes_come(gateway: Any) -> None:
    with httpx.stream("POST", f"{gateway.url}/v1/audio/speech", json=SLOW, timeout=60) as answer:
        next(answer.iter_raw())


def leave_while_events_come(gateway: Any) -> None:
    body = {**SLOW, "stream_format": "sse"}
    with httpx.stream("POST", f"{gateway.url}/v1/audio/speech", json=body, timeout=60) as answer:
        next(answer.iter_raw())


def leave_before_the_first_byte(gateway: Any) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    body = json.dumps({**SLOW, "stream": False}).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        limit = time.monotonic() + WAIT_SECONDS
        while not gateway.shared.access.house.active:
            assert time.monotonic() < limit
            time.sleep(0.005)
        time.sleep(0.2)


@contextmanager
def live_speech(gateway: Any) -> Iterator[Any]:
    """A session whose first audio has come."""
    with connect(gateway.ws_url, max_size=None) as connection:
        for event in (
            {"type": "session.config", "seed": 1, "inference_steps": 100},
            {"type": "input.text", "text": SLOW["input"]},
            {"type": "input.done"},
        ):
            connection.send(json.dumps(event))
        while not isinstance(connection.recv(WAIT_SECONDS), bytes):
            pass
        yield connection


def leave_a_live_session(gateway: Any) -> None:
    with live_speech(gateway):
        pass


def drop_a_live_session(gateway: Any) -> None:
    with live_speech(gateway) as connection:
        connection.socket.shutdown(socket.SHUT_RDWR)


def barge_in(gateway: Any) -> None:
    with live_speech(gateway) as connection:
        connection.send(json.dumps({"type": "input.cancel"}))
        while isinstance(message := connection.recv(WAIT_SECONDS), bytes) or "input.cancelled" not in message:
            pass


@pytest.mark.parametrize(
    "leave",
    [
        leave_while_bytes_come,
        leave_while_events_come,
        leave_before_the_first_byte,
        leave_a_live_session,
        drop_a_live_session,
        barge_in,
    ],
)
def test_leaving_ends_the_work_in_triton(
    gateway: Any, speech_server: Any, whole: int, leave: Callable[[Any], None]
) -> None:
    before = chunks_made(speech_server)
    for _ in range(3):
        leave(gateway)
        wait_until_idle(gateway)
    # Whatever still ran would share the talker's steps with this one.
    short = gateway.post({"input": "Hi.", "response_format": "pcm", "max_seconds": 1.0})
    assert short.status_code == 200
    assert chunks_made(speech_server) - before < 3 * whole / 2


def test_twenty_callers_who_leave_at_random_moments_harm_nobody(gateway: Any, speech_server: Any) -> None:
    source = random.Random(2)
    moments = [source.random() * 0.5 for _ in range(20)]

    def leave(moment: float) -> None:
        body = {**SLOW, "response_format": source.choice(["mp3", "opus", "pcm"])}
        timeout = httpx.Timeout(60, read=max(moment, 0.001))
        try:
            with httpx.stream("POST", f"{gateway.url}/v1/audio/speech", json=body, timeout=timeout) as answer:
                limit = time.monotonic() + moment
                for _ in answer.iter_raw():
                    if time.monotonic() > limit:
                        return
        except httpx.ReadTimeout:
            pass

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(leave, moments))
    wait_until_idle(gateway)
    assert gateway.post({"input": "Hi.", "max_seconds": 0.5}).status_code == 200
    assert "Signal (" not in speech_server.log_text()


def unread(gateway: Any, body: dict[str, Any]) -> socket.socket:
    """A caller with a small window who asks and reads nothing."""
    host, port = gateway.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    connection.sendall(head.encode() + b"\r\n\r\n" + data)
    return connection


def left(gateway: Any) -> float:
    """Utterances that ended because their reader had gone or slept."""
    return float(gateway.shared.metrics.utterances.labels("anonymous", "left")._value.get())


def test_a_reader_who_sleeps_is_not_read_for_and_in_the_end_left(speech_server: Any, start_gateway: Any) -> None:
    """Some eight megabytes of audio, which neither the gateway nor the kernel keeps for him."""
    body = {**SLOW, "inference_steps": 2, "sample_rate": 48000, "speed": 0.25}
    with start_gateway(triton=speech_server.grpc_url, stall_seconds=1.0) as gateway:
        with unread(gateway, body):
            limit = time.monotonic() + WAIT_SECONDS
            while not left(gateway):
                assert time.monotonic() < limit
                time.sleep(0.02)
        wait_until_idle(gateway)
        assert gateway.post({"input": "Hi.", "max_seconds": 0.5}).status_code == 200


def test_a_live_listener_who_sleeps_is_left_too(speech_server: Any, start_gateway: Any) -> None:
    config = {"type": "session.config", "seed": 1, "sample_rate": 48000, "speed": 0.25}
    with start_gateway(triton=speech_server.grpc_url, stall_seconds=1.0) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.connect((host, int(port)))
        with connect(gateway.ws_url, sock=small, max_queue=2, max_size=None, close_timeout=0.1) as connection:
            for event in (config, {"type": "input.text", "text": SLOW["input"]}, {"type": "input.done"}):
                connection.send(json.dumps(event))
            limit = time.monotonic() + WAIT_SECONDS
            while not left(gateway):
                assert time.monotonic() < limit
                time.sleep(0.02)
            wait_until_idle(gateway)
