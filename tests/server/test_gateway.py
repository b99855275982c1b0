"""Many callers of a gateway at once: a server with room for all of them, and the command as it is started by hand."""

from __future__ import annotations

import asyncio
import io
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import soundfile

STREAMS = 200
ROUNDS = 3
ROOM = {
    "voxcpm2": {"max_streams": 320, "queue_seconds": 120},
    "voxcpm2_talker": {"max_waiting": 320},
    "voxcpm2_codec": {"max_streams": 320},
}
GROWTH_KIB = 40 * 1024


@pytest.fixture(scope="module")
def roomy_server(serving: Callable[..., AbstractContextManager[Any]]) -> Iterator[Any]:
    with serving(ROOM) as server:
        yield server


@pytest.fixture
def gateway(roomy_server: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command's process, and the URL that it tells."""
    code = "import sys; from triton_speech_client.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "gateway", "--triton", roomy_server.grpc_url, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate(timeout=30)


def resident_kib(process: int) -> int:
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text(encoding="ascii"))[0])


async def speak_all(url: str, first_seed: int) -> list[tuple[int, bytes]]:
    """Status and body of each stream; all begin at once."""

    async def one(session: aiohttp.ClientSession, seed: int) -> tuple[int, bytes]:
        body = {"input": "Good morning.", "response_format": "wav", "seed": seed, "max_seconds": 0.4}
        async with session.post(f"{url}/v1/audio/speech", json=body) as answer:
            return answer.status, await answer.read()

    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=200)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        return await asyncio.gather(*(one(session, first_seed + index) for index in range(STREAMS)))


def test_two_hundred_streams_are_all_whole_and_leave_no_memory(gateway: tuple[subprocess.Popen[str], str]) -> None:
    process, url = gateway
    memory = []
    for round_ in range(ROUNDS):
        answers = asyncio.run(speak_all(url, 1000 * round_))
        assert [status for status, _ in answers] == [200] * STREAMS
        assert all(soundfile.info(io.BytesIO(body)).duration == pytest.approx(0.4, abs=0.1) for _, body in answers)
        memory.append(resident_kib(process.pid))
    assert memory[-1] < memory[0] + GROWTH_KIB

    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in said
