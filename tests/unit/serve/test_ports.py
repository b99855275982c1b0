"""Ports are checked before a server starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.ports import Ports, check_ports

LOCAL = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server((LOCAL, 0)) as listener:
        yield listener.getsockname()[1]


def test_zero_picks_distinct_free_ports() -> None:
    ports = check_ports(LOCAL, Ports(0, 0, 0))

    assert len({ports.http, ports.grpc, ports.metrics}) == 3
    assert check_ports(LOCAL, ports) == ports


@pytest.mark.parametrize("name", ["http", "grpc", "metrics"])
def test_taken_port_names_its_option(taken: int, name: str) -> None:
    with pytest.raises(SpeechSetupError, match=f"^--{name}-port {taken} is already in use$"):
        check_ports(LOCAL, Ports(**{"http": 0, "grpc": 0, "metrics": 0, name: taken}))


def test_one_port_for_two_services_is_refused() -> None:
    free = check_ports(LOCAL, Ports(0, 0, 0)).http

    with pytest.raises(SpeechSetupError, match=f"^--grpc-port {free} is already in use$"):
        check_ports(LOCAL, Ports(free, free, 0))


@pytest.mark.parametrize("port", [-1, 65536])
def test_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(SpeechSetupError, match=f"--metrics-port {port} is not a port"):
        check_ports(LOCAL, Ports(0, 0, port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_foreign_host_is_refused(host: str) -> None:
    with pytest.raises(SpeechSetupError, match=f"^--host {host} is not an address of this machine$"):
        check_ports(host, Ports(0, 0, 0))
