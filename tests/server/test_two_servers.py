"""Two servers share streams, behind one name or a proxy; one that dies takes none along that had not begun."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.server.nginx import nginx

from triton_speech_client import SpeechClient

Launching = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def servers(launching: Launching) -> Iterator[list[Any]]:
    """Two launchers, each with a server of its own."""
    same_bits = {stage: {"deterministic": "true"} for stage in ("voxcpm2_talker", "voxcpm2_codec")}
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(launching(parameters=same_bits)) for _ in range(2)]


def address(server: Any) -> str:
    return str(server.urls["grpc"])


@pytest.fixture
def one_name(servers: list[Any]) -> str:
    """What a headless service's name resolves to."""
    return "ipv4:" + ",".join(address(server) for server in servers)


@pytest.fixture
def proxy(servers: list[Any], tmp_path: Path) -> Iterator[str]:
    with nginx([address(server) for server in servers], tmp_path) as proxy:
        yield proxy


@pytest.fixture(params=["one_name", "proxy"])
def entrance(request: pytest.FixtureRequest) -> str:
    """The address of both: spread by the client itself, or by nginx."""
    return str(request.getfixturevalue(request.param))


def answered(server: Any) -> float:
    return float(server.metric("triton_speech_requests_total", outcome="ok"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_streams_spread_and_a_server_that_dies_loses_none_that_had_not_begun(servers: list[Any], entrance: str) -> None:
    with SpeechClient(entrance, retries=4) as client, ThreadPoolExecutor(8) as threads:
        client.wait_ready(60)

        def speak(seed: int) -> Any:
            return client.synthesize("Hi.", seed=seed, max_seconds=0.4)

        alone: list[Any] = []

        def both_speak() -> bool:
            alone[:] = threads.map(speak, range(8))
            return all(answered(server) >= 8 for server in servers)

        wait_until(both_speak)

        # A server that stands still holds its streams before their first chunk.
        server = servers[0].pid
        os.kill(server, signal.SIGSTOP)
        running = [threads.submit(speak, seed) for seed in range(8)]
        wait_until(lambda: sum(future.done() for future in running) >= 4)
        assert not all(future.done() for future in running)
        servers[0].process.kill()
        os.killpg(server, signal.SIGKILL)
        # The seed alone says what is heard, whichever server speaks.
        for seed, future in enumerate(running):
            assert (future.result(120).samples == alone[seed].samples).all()
        for seed, speech in enumerate(threads.map(speak, range(8))):
            assert (speech.samples == alone[seed].samples).all()


def test_a_server_that_drains_sends_new_streams_to_the_other(servers: list[Any], entrance: str) -> None:
    """In the end: until it has gone, a retry may meet it again."""
    with SpeechClient(entrance, retries=20) as client, ThreadPoolExecutor(4) as threads:
        client.wait_ready(60)
        before = answered(servers[1])
        running = [threads.submit(client.synthesize, "Hi.", seed=seed, max_seconds=0.4) for seed in range(24)]
        running[2].result()
        servers[0].process.send_signal(signal.SIGTERM)
        assert all(future.result().finish_reason for future in running)
        assert servers[0].end()[0] == 0
        wait_until(lambda: answered(servers[1]) > before)
