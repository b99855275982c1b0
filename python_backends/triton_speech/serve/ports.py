"""The three ports of a server, checked before it starts."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack
from dataclasses import dataclass

from triton_speech.serve.errors import SpeechSetupError

# Below the range from which the system takes the ports of outgoing connections.
_PICK = range(20000, 32768)
_PICK_ATTEMPTS = 100


@dataclass(frozen=True)
class Ports:
    """TCP ports of one server; 0 asks for a free one."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


def check_ports(host: str, ports: Ports) -> Ports:
    """``ports`` with every 0 replaced by a free port.

    Raises:
        SpeechSetupError: ``host`` is no address of this machine, or a port is taken, not allowed or named twice.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise SpeechSetupError(f"--host {host} is not an address of this machine") from error
    with ExitStack() as held:
        # Held together, so that no port is found free twice.
        http, grpc, metrics = (
            _hold(held, family, str(address[0]), option, port)
            for option, port in (
                ("--http-port", ports.http),
                ("--grpc-port", ports.grpc),
                ("--metrics-port", ports.metrics),
            )
        )
    return Ports(http, grpc, metrics)


def _hold(held: ExitStack, family: int, host: str, option: str, port: int) -> int:
    if not 0 <= port < 65536:
        raise SpeechSetupError(f"{option} {port} is not a port; allowed are 0 to 65535")
    candidates = [port] if port else random.sample(_PICK, _PICK_ATTEMPTS)
    for candidate in candidates:
        problem = _bind(held, family, host, candidate)
        if problem is None:
            return candidate
        if problem.errno == errno.EADDRNOTAVAIL:
            raise SpeechSetupError(f"--host {host} is not an address of this machine")
        if problem.errno == errno.EACCES:
            raise SpeechSetupError(f"{option} {port} needs more rights; take a port from 1024 up")
    raise SpeechSetupError(f"{option} {port} is already in use" if port else f"{option} 0: no free port was found")


def _bind(held: ExitStack, family: int, host: str, port: int) -> OSError | None:
    """Holds the port until ``held`` closes, or says why it cannot be had."""
    listener = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Two sockets with SO_REUSEADDR may share a bound port, but not a listening one.
        listener.listen(1)
    except OSError as error:
        return error
    return None
