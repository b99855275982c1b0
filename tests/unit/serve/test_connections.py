"""Ending the connections of a child process."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from triton_speech.serve import connections

# Takes connections, each on a line of its own here, and writes to the last one when it is told to.
SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
held = []
for line in sys.stdin:
    if line == "accept\\n":
        held.append(listener.accept()[0])
    else:
        held[-1].send(b"x")
    print("done", flush=True)
"""
CLIENT = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
while connection.recv(100):
    pass
"""


class Pair:
    """A server and clients, all of them children of this process."""

    def __init__(self) -> None:
        self.server = self._start(SERVER)
        assert self.server.stdout is not None
        self.port = int(self.server.stdout.readline())
        self.clients: list[subprocess.Popen[str]] = []

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, word: str) -> None:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(f"{word}\n")
        self.server.stdin.flush()
        self.server.stdout.readline()

    def connect(self) -> subprocess.Popen[str]:
        client = self._start(CLIENT, str(self.port))
        assert client.stdout is not None
        client.stdout.readline()
        self.tell("accept")
        self.clients.append(client)
        return client


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    for process in (pair.server, *pair.clients):
        process.kill()
        process.communicate()


def test_a_client_hears_of_it(pair: Pair) -> None:
    client = pair.connect()
    assert connections.count(pair.server.pid, [pair.port]) == 1
    assert connections.hang_up(pair.server.pid, [pair.port], 0.0) == 1
    assert client.wait(10) == 0


def test_a_connection_that_is_in_use_is_left_alone(pair: Pair) -> None:
    is_fresh = False
    while not is_fresh:
        quiet, _busy = pair.connect(), pair.connect()
        time.sleep(1.2)
        sent = time.monotonic()
        pair.tell("send")
        ended = connections.hang_up(pair.server.pid, [pair.port], 1.0)
        # On a machine that stands still in between, both are quiet, and rightly ended.
        is_fresh = time.monotonic() - sent < 1.0
    assert ended == 1
    assert quiet.wait(10) == 0
    assert connections.count(pair.server.pid, [pair.port]) == 1


def test_other_ports_and_the_launchers_own_connections_are_left_alone(pair: Pair) -> None:
    with socket.create_connection(("127.0.0.1", pair.port)) as own:
        pair.tell("accept")
        pair.connect()
        assert connections.hang_up(pair.server.pid, [pair.port + 1], 0.0) == 0
        assert connections.hang_up(pair.server.pid, [pair.port], 0.0) == 1
        assert select.select([own], [], [], 0.2)[0] == []


def test_a_process_that_is_gone_has_no_connections() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert connections.count(process.pid, [1]) == 0
    assert connections.hang_up(os.getpid(), [1], 0.0) == 0


def test_new_connections_are_refused_and_open_ones_stay(pair: Pair) -> None:
    client = pair.connect()
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert connections.refuse_new(pair.server.pid, pair.port) == 1
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", pair.port), timeout=10)
        socket.create_connection(other.getsockname()[:2], timeout=10).close()
    assert client.poll() is None
    assert connections.count(pair.server.pid, [pair.port]) == 1
    assert connections.refuse_new(pair.server.pid, pair.port) == 0
