"""Streams are tried again where nobody has heard anything yet, and nowhere else."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from triton_speech_client import (
    AsyncSpeechClient,
    DeadlineExceeded,
    InvalidRequest,
    ServerUnavailable,
    SpeechClient,
    SpeechClientError,
)
from triton_speech_client.retry import LONGEST_SECONDS, Retries, hinted_seconds

TEXT = "The quick brown fox."
FULL = ServerUnavailable("the talker is full (8); try again in a moment")
# Runs for many seconds on any machine, unless it is cancelled.
SLOW = {"seed": 1, "inference_steps": 100, "chunk_schedule": [1]}


def test_waits_grow_up_to_a_limit_and_differ_from_caller_to_caller() -> None:
    everyone = [Retries(8, 1000) for _ in range(50)]
    rounds = [[each.wait(FULL) for each in everyone] for _ in range(8)]
    for number, waits in enumerate(rounds):
        backoff = min(0.2 * 2**number, LONGEST_SECONDS)
        assert all(wait is not None and backoff / 2 <= wait <= backoff for wait in waits)
        assert len(set(waits)) > 40
    assert {each.wait(FULL) for each in everyone} == {None}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("the talker is full (8); try again in 2 s", 2.0),
        ("the server is busy: retry after 0.5 s", 0.5),
        ("the talker is full (8); try again in a moment", 0.0),
        ("no place came free within 30 s", 0.0),
    ],
)
def test_the_servers_hint_is_the_least_wait(text: str, seconds: float) -> None:
    assert hinted_seconds(text) == seconds
    wait = Retries(1, 1000).wait(ServerUnavailable(text))
    assert wait is not None
    assert seconds + 0.1 <= wait <= seconds + 0.2


def test_nobody_waits_for_a_retry_that_would_come_too_late() -> None:
    assert Retries(5, 0.05).wait(FULL) is None
    assert Retries(5, 10).wait(ServerUnavailable("the talker is full (8); try again in 20 s")) is None


def test_a_server_that_comes_late_is_reached(late_cable: Any) -> None:
    with SpeechClient(late_cable.url, retries=20) as client:
        assert client.synthesize(TEXT, seed=1, max_seconds=0.5).duration > 0


def test_a_server_that_comes_late_is_reached_by_asyncio(late_cable: Any) -> None:
    async def speak() -> float:
        async with AsyncSpeechClient(late_cable.url, retries=20) as client:
            return (await client.synthesize(TEXT, seed=1, max_seconds=0.5)).duration

    assert asyncio.run(speak()) > 0


def test_without_retries_an_absent_server_is_told_of_at_once(late_cable: Any) -> None:
    client = SpeechClient(late_cable.url, retries=0)
    with pytest.raises(ServerUnavailable, match="no connection"):
        client.synthesize(TEXT)


def test_without_retries_an_absent_server_is_told_of_at_once_by_asyncio(late_cable: Any) -> None:
    async def speak() -> None:
        async with AsyncSpeechClient(late_cable.url, retries=0) as client:
            await client.synthesize(TEXT)

    with pytest.raises(ServerUnavailable, match="no connection"):
        asyncio.run(speak())


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_stream_that_was_heard_is_not_begun_again(cable: Any, kind: str) -> None:
    heard: list[int] = []

    def listen() -> None:
        for chunk in SpeechClient(cable.url, retries=20).stream("word " * 45, **SLOW):
            heard.append(chunk.index)
            cable.drop()

    async def listen_by_asyncio() -> None:
        async with AsyncSpeechClient(cable.url, retries=20) as client:
            async for chunk in client.stream("word " * 45, **SLOW):
                heard.append(chunk.index)
                cable.drop()

    with pytest.raises(SpeechClientError):
        listen() if kind == "blocking" else asyncio.run(listen_by_asyncio())
    assert heard == list(range(len(heard)))
    assert heard


def test_what_the_caller_can_mend_is_not_tried_again(client: SpeechClient, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []
    attempt = client._try
    monkeypatch.setattr(client, "_try", lambda *given: tries.append(1) or attempt(*given))
    with pytest.raises(InvalidRequest):
        client.synthesize("")
    assert len(tries) == 1


def test_the_deadline_holds_for_all_tries_together(closed_port: int) -> None:
    began = time.monotonic()
    client = SpeechClient(f"127.0.0.1:{closed_port}", retries=1000)
    with pytest.raises((ServerUnavailable, DeadlineExceeded)):
        client.synthesize(TEXT, deadline=0.5)
    assert time.monotonic() - began < 60


def test_closing_the_client_ends_the_wait_for_a_retry(closed_port: int) -> None:
    client = SpeechClient(f"127.0.0.1:{closed_port}", retries=1000, timeout=3600)
    threading.Timer(0.5, client.close).start()
    with pytest.raises(ServerUnavailable):
        client.synthesize(TEXT)


@pytest.mark.parametrize("retries", [-1, 1.5, True, None])
def test_a_number_of_retries_that_is_none_is_refused(retries: Any) -> None:
    with pytest.raises(InvalidRequest, match="retries"):
        SpeechClient(retries=retries)
