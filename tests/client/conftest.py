"""Clients of the suite's server, and of a port where none is."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
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


class Cable:
    """A TCP connection to the server that can be cut; it is plugged in ``seconds`` after it was made."""

    def __init__(self, target: str, seconds: float = 0.0) -> None:
        host, port = target.split(":")
        self._target = (host, int(port))
        self._sockets: list[socket.socket] = []
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"
        if not seconds:
            self._listener.listen()
        threading.Thread(target=self._accept, args=(seconds,), daemon=True).start()

    def cut(self) -> None:
        """For good."""
        self._close(self._listener)
        self.drop()

    def drop(self) -> None:
        """What is connected now; who calls again gets through."""
        self._close(*self._sockets)
        self._sockets.clear()

    def _close(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self, seconds: float) -> None:
        time.sleep(seconds)
        with contextlib.suppress(OSError):
            self._listener.listen()
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)


@pytest.fixture
def cable(speech_server: Any) -> Iterator[Cable]:
    """To the suite's server."""
    cable = Cable(speech_server.grpc_url)
    yield cable
    cable.cut()


@pytest.fixture
def late_cable(speech_server: Any) -> Iterator[Cable]:
    """To the suite's server, which cannot be reached in the first 0.4 s."""
    cable = Cable(speech_server.grpc_url, seconds=0.4)
    yield cable
    cable.cut()
