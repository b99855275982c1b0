"""The clients' connections of a server, seen from its parent process.

When the process behind a stream dies, Triton tells the client nothing, ever. The launcher can: it takes a copy of the
connection's socket (``pidfd_getfd``) and shuts it down, and the client has an error at once. And Triton goes on taking
connections while it drains, so that proxies and balancing clients think it well: the listening socket is shut down in
the same way.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_ESTABLISHED, _LISTENING = "01", "0A"
_PIDFD_GETFD = 438
# struct tcp_info of linux/tcp.h: eight bytes of flags, then 32-bit numbers, of which this is milliseconds.
_LAST_DATA_SENT_OFFSET = 8 + 9 * 4
_INFO_BYTES = 104

_libc = ctypes.CDLL(None, use_errno=True)


def count(server: int, ports: Collection[int]) -> int:
    """How many connections to these ports of the server are open, the launcher's own apart."""
    return len(_descriptors(server, ports))


def hang_up(server: int, ports: Collection[int], quiet_seconds: float) -> int:
    """Ends those to which the server has sent nothing for so long (0: all), and returns their number.

    Raises:
        OSError: the system does not let this process at the sockets of its child.
    """
    ended = 0
    for connection in _copies(server, _descriptors(server, ports)):
        if _last_sent_seconds(connection) < quiet_seconds:
            continue
        with contextlib.suppress(OSError):  # it has just ended by itself
            connection.shutdown(socket.SHUT_RDWR)
            ended += 1
    return ended


def refuse_new(server: int, port: int) -> int:
    """Has the system refuse new connections to this port; those that are open stay. Returns how many sockets listened.

    For gRPC, which then leaves the socket alone; Triton's HTTP would try it again and again without a pause.

    Raises:
        OSError: the system does not let this process at the sockets of its child.
    """
    listening = [row.descriptor for row in _ends(server, _LISTENING) if row.local == port]
    for listener in _copies(server, listening):
        with contextlib.suppress(OSError):  # it has been closed just now
            listener.shutdown(socket.SHUT_RDWR)
    return len(listening)


def _copies(server: int, descriptors: Collection[int]) -> Iterator[socket.socket]:
    """Copies of the server's sockets, each open until the next is asked for."""
    if not descriptors:
        return
    process = os.pidfd_open(server)
    try:
        for descriptor in descriptors:
            copy = _libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
            if copy < 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
            with socket.socket(fileno=copy) as connection:
                yield connection
    finally:
        os.close(process)


def _descriptors(server: int, ports: Collection[int]) -> list[int]:
    """The server's sockets of these ports, without those whose other end is this process."""
    own = {row.local for row in _ends(os.getpid(), _ESTABLISHED)}
    connections = [row for row in _ends(server, _ESTABLISHED) if row.local in ports and row.remote not in own]
    return [row.descriptor for row in connections]


@dataclass(frozen=True)
class _Row:
    """A TCP socket: its descriptor in a process, and the ports of its two ends (remote 0 where it listens)."""

    descriptor: int
    local: int
    remote: int


def _ends(process: int, wanted: str) -> list[_Row]:
    """The process's sockets in a state, as /proc names it."""
    proc = Path("/proc") / str(process)
    ports: dict[str, tuple[int, int]] = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / table).read_text(encoding="utf-8").splitlines()[1:]:
                _, local, remote, state, *rest = line.split()
                if state == wanted:
                    ports[f"socket:[{rest[5]}]"] = (_port(local), _port(remote))
    rows = []
    with contextlib.suppress(OSError):
        for entry in (proc / "fd").iterdir():
            with contextlib.suppress(OSError):
                name = str(entry.readlink())
                if name in ports:
                    rows.append(_Row(int(entry.name), *ports[name]))
    return rows


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _last_sent_seconds(connection: socket.socket) -> float:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return int(struct.unpack_from("=I", info, _LAST_DATA_SENT_OFFSET)[0]) / 1000
