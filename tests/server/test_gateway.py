"""Many callers of a gateway at once: a server with room for all of them, and the command as it is started by hand."""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import soundfile

from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer

ROOT = Path(__file__).resolve().parents[2]
FULL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("the house is full (3); try again in 6.5 s", pb_utils.TritonError.UNAVAILABLE)
        for request in requests:
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
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


@contextmanager
def running(grpc_url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command's process, and the URL that it tells."""
    code = "import sys; from triton_speech_client.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "gateway", "--triton", grpc_url, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate(timeout=30)


@pytest.fixture
def gateway(roomy_server: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with running(roomy_server.grpc_url) as process_and_url:
        yield process_and_url


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


def test_a_gateway_that_is_stopped_lets_its_speeches_end(gateway: tuple[subprocess.Popen[str], str]) -> None:
    process, url = gateway
    body = {"input": "word " * 45, "response_format": "pcm", "inference_steps": 40, "max_seconds": 3, "seed": 1}
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=60) as answer:
        pieces = answer.iter_raw()
        first = next(pieces)
        process.send_signal(signal.SIGTERM)
        refused = False
        while not refused:
            try:
                httpx.get(f"{url}/health", timeout=10)
            except httpx.TransportError:
                refused = True
        rest = list(pieces)
    # 24 kHz, 16 bits; whole frames.
    assert len(first) + sum(map(len, rest)) == pytest.approx(2 * 24_000 * 3, rel=0.05)
    process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM)


def test_a_full_servers_hint_reaches_the_caller(tmp_path: Path) -> None:
    """Callers of the gateway had one second to wait, whatever the server had asked for."""
    front_door = tmp_path / "ensembles" / "voxcpm2"
    (front_door / "1").mkdir(parents=True)
    (tmp_path / "model_repository").mkdir()
    shutil.copy(ROOT / "ensembles" / "voxcpm2" / "config.pbtxt", front_door)
    (front_door / "1" / "model.py").write_text(FULL, encoding="utf-8")
    settings = ServerSettings(tmp_path, ROOT / "checkpoints" / "quickstart", ports=Ports(0, 0, 0), drain_seconds=2)
    with TritonServer(settings) as server:
        server.wait_ready(60)
        with running(server.grpc_url) as (_, url):
            answer = httpx.post(f"{url}/v1/audio/speech", json={"input": "Hi."}, timeout=60)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "overloaded"
    assert answer.headers["retry-after"] == "7"
