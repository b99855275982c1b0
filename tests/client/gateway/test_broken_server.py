"""Triton goes away in the middle of a speech: the caller hears of it, and a file that was cut does not look whole."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

# Runs for many seconds on any machine, unless it is cancelled.
SLOW = {"input": "word " * 45, "response_format": "pcm", "seed": 1, "inference_steps": 100}
SECONDS = 30


@pytest.fixture
def fragile(cable: Any, start_gateway: Any) -> Iterator[Any]:
    with start_gateway(triton=cable.url) as gateway:
        yield gateway


def test_raw_bytes_break_off(fragile: Any, cable: Any) -> None:
    with httpx.stream("POST", f"{fragile.url}/v1/audio/speech", json=SLOW, timeout=SECONDS) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        cable.cut()
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)


def test_events_end_with_an_error(fragile: Any, cable: Any) -> None:
    body = {**SLOW, "stream_format": "sse"}
    with httpx.stream("POST", f"{fragile.url}/v1/audio/speech", json=body, timeout=SECONDS) as answer:
        lines = answer.iter_lines()
        next(lines)
        cable.cut()
        rest = [line for line in lines if line]
    assert rest[-2] == "event: error"
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "unavailable"


def test_a_whole_file_is_an_error_and_no_half_a_file(fragile: Any, cable: Any) -> None:
    timer = threading.Timer(0.5, cable.cut)
    timer.start()
    answer = fragile.post({**SLOW, "response_format": "wav", "stream": False})
    timer.join()
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "server_error"


def test_a_live_utterance_fails(fragile: Any, cable: Any) -> None:
    with connect(fragile.ws_url, max_size=None) as connection:
        for event in (
            {"type": "session.config", "inference_steps": 100},
            {"type": "input.text", "text": SLOW["input"]},
            {"type": "input.done"},
        ):
            connection.send(json.dumps(event))
        while not isinstance(connection.recv(SECONDS), bytes):
            pass
        cable.cut()
        events = []
        while not events or events[-1]["type"] != "utterance.done":
            if not isinstance(message := connection.recv(SECONDS), bytes):
                events.append(json.loads(message))
    assert [event["type"] for event in events[-2:]] == ["error", "utterance.done"]
    assert events[-2]["error"]["code"] == "unavailable"
    assert events[-1]["status"] == "failed"
