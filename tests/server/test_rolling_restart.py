"""Servers behind a proxy are started anew, one after the other, while people speak through it."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tests.server.nginx import free_port, nginx

from triton_speech_client import SpeechClient

Launching = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]

CALLERS = 4
SHORT = {"max_seconds": 0.2}
# Keeps its server draining for seconds, in which others must not be lost.
LONG = {
    "TEXT": "word " * 45,
    "CHUNK_SCHEDULE": np.array([1], np.int32),
    "INFERENCE_STEPS": np.array([60], np.int32),
    "MAX_SECONDS": np.array([2], np.float32),
}


def test_a_rolling_restart_behind_a_proxy_loses_no_request(
    launching: Launching, calling: Calling, tmp_path: Path
) -> None:
    """With the clients' usual two retries: a server that drained was sent every second request, and refused it."""
    ports = [free_port() for _ in range(2)]
    over, counter = threading.Event(), itertools.count()
    with ExitStack() as stack:
        servers = [launching(f"--grpc-port={port}", "--drain-seconds=60") for port in ports]
        launched = [stack.enter_context(server) for server in servers]
        proxy = stack.enter_context(nginx([f"127.0.0.1:{port}" for port in ports], tmp_path))
        client = stack.enter_context(SpeechClient(proxy))
        threads = stack.enter_context(ThreadPoolExecutor(CALLERS))
        stack.callback(over.set)

        def speak() -> int:
            spoken = 0
            while not over.is_set():
                assert client.synthesize("Hi.", seed=next(counter), **SHORT).finish_reason
                spoken += 1
            return spoken

        running = [threads.submit(speak) for _ in range(CALLERS)]
        for number, port in enumerate(ports):
            with calling(f"127.0.0.1:{port}") as caller:
                stream = caller.open("voxcpm2", LONG, seconds=200)
                assert not next(stream).error_message
                launched[number].process.send_signal(signal.SIGTERM)
                launched[number].wait_report(lambda report: report["state"] == "draining")
                *_, last = stream
                assert not last.error_message
            assert launched[number].end()[0] == 0
            launched[number] = stack.enter_context(launching(f"--grpc-port={port}"))
            assert launched[number].metric("triton_speech_launcher_ready", "health") == 1
        over.set()
        assert sum(future.result(120) for future in running) > 0


def test_a_recording_of_megabytes_passes_the_proxy(launching: Launching, tmp_path: Path) -> None:
    """nginx lets a megabyte through unless it is told otherwise."""
    noise = 0.1 * np.random.default_rng(1).standard_normal(20 * 48_000)
    with launching() as launched, nginx([launched.urls["grpc"]] * 2, tmp_path) as proxy, SpeechClient(proxy) as client:
        assert client.synthesize("Hi.", reference=(noise, 48_000), **SHORT).finish_reason
