"""Clients of the suite's server, and of a port where none is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from triton_speech_client import SpeechClient


@pytest.fixture
def client(speech_server: Any) -> Iterator[SpeechClient]:
    """A client of the suite's server, ready to be asked."""
    with SpeechClient(speech_server.grpc_url) as client:
        client.wait_ready(30)
        yield client


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine that nobody else gets and nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
