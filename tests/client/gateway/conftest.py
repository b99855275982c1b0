"""Gateways before the suite's server, each with settings of its own, and the official client of OpenAI."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from triton_speech_client.gateway.app import create_app
from triton_speech_client.gateway.settings import GatewaySettings

# For the server that the suite starts: stages that each spin on all cores slow each other down tenfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")
START_SECONDS = 30


@dataclass(frozen=True)
class LiveGateway:
    """A gateway that listens: its URL without a slash, and what its routes share."""

    url: str
    shared: Any

    @property
    def ws_url(self) -> str:
        return f"{self.url.replace('http', 'ws', 1)}/v1/audio/speech/stream"

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def post(self, body: Any, **more: Any) -> httpx.Response:
        """Asks for speech with whatever body."""
        return httpx.post(f"{self.url}/v1/audio/speech", json=body, timeout=60, **more)


Start = Callable[..., AbstractContextManager[LiveGateway]]


@pytest.fixture(scope="session")
def start_gateway() -> Start:
    """Runs a gateway on a free port: keyword arguments are its settings."""

    @contextmanager
    def start(**settings: Any) -> Iterator[LiveGateway]:
        app = create_app(GatewaySettings(**settings))
        server = uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=2)
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        limit = time.monotonic() + START_SECONDS
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < limit
            time.sleep(0.01)
        try:
            port = server.servers[0].sockets[0].getsockname()[1]
            yield LiveGateway(f"http://127.0.0.1:{port}", app.state.gateway)
        finally:
            server.should_exit = True
            thread.join(START_SECONDS)

    return start


@pytest.fixture(scope="session")
def gateway(speech_server: Any, start_gateway: Start) -> Iterator[LiveGateway]:
    """A gateway with the default settings."""
    with start_gateway(triton=speech_server.grpc_url) as gateway:
        yield gateway
