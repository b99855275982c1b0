"""What the gateway costs: its first byte beside the gRPC client's, how fast a cancel gets through, memory under load.

    python tests/perf/bench_gateway.py [--checkpoint DIR] [--repeats 200] [--streams 200] [--rounds 6]

Definitions. First byte: from sending the request to the first bytes of audio, at the client, one request at a time;
the client of the gateway and the gRPC client take turns, so that both meet the same machine. Only the request's first
chunk is waited for; the rest is read and thrown away.
Cancel: from closing the connection to the moment that the talker has been told, seen in Triton's own statistics.
Load: all streams begin at once, each in its own connection; lost is a stream without its whole WAV file.
Memory: of the gateway's process after each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from tritonclient.grpc import InferenceServerClient
from websockets.asyncio.client import connect

from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.serve.layout import REPOSITORIES, find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer
from triton_speech_client import AsyncSpeechClient

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Good morning, the train to the city leaves in ten minutes."
SHORT = {"seed": 1, "max_seconds": 0.5}
SLOW = {"input": TEXT * 2, "response_format": "pcm", "seed": 1, "inference_steps": 100}
WAV_HEADER_BYTES = 44
# Room for every stream, so that the load measures the gateway and not the queue's limit.
ROOM = {
    "voxcpm2": {"max_streams": 320, "queue_seconds": 120},
    "voxcpm2_talker": {"max_waiting": 320},
    "voxcpm2_codec": {"max_streams": 320},
}


@contextmanager
def gateway_before(grpc_url: str) -> Iterator[tuple[str, int]]:
    """A gateway process on a free port: its URL and process id."""
    code = "import sys; from triton_speech_client.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "gateway", "--triton", grpc_url, "--port", "0", "--max-concurrent", "1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process.pid
    finally:
        process.terminate()
        process.wait(30)


def with_room(models: Path, target: Path) -> Path:
    """The project's models, linked, but for a few parameters."""
    for repository in REPOSITORIES:
        (target / repository).mkdir()
        for model in (models / repository).iterdir():
            link = target / repository / model.name
            if model.name not in ROOM:
                link.symlink_to(model)
                continue
            link.mkdir()
            (link / "1").symlink_to(model / "1")
            config = (model / "config.pbtxt").read_text(encoding="utf-8")
            for name, value in ROOM[model.name].items():
                config = re.sub(rf'parameters \{{ key: "{name}".*\n', "", config)
                config += f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'
            (link / "config.pbtxt").write_text(config, encoding="utf-8")
    return target


async def first_byte(url: str, grpc_url: str, repeats: int) -> dict[str, list[float]]:
    """Milliseconds to the first audio, by way; a tenth of the requests more come before and do not count."""
    times: dict[str, list[float]] = {"gRPC client": [], "gateway": [], "gateway, mp3": []}
    async with AsyncSpeechClient(grpc_url, retries=0) as client, aiohttp.ClientSession() as session:

        async def through_grpc() -> float:
            began, first = time.perf_counter(), 0.0
            async for _ in client.stream(TEXT, pcm16=True, **SHORT):
                first = first or time.perf_counter() - began
            return first

        async def through_gateway(name: str) -> float:
            began, first = time.perf_counter(), 0.0
            async with session.post(
                f"{url}/v1/audio/speech", json={"input": TEXT, "response_format": name, **SHORT}
            ) as r:
                async for _ in r.content.iter_any():
                    first = first or time.perf_counter() - began
            return first

        for round_ in range(-(repeats // 10), repeats):
            ways: list[tuple[str, Callable[[], Awaitable[float]]]] = [
                ("gRPC client", through_grpc),
                ("gateway", lambda: through_gateway("wav")),
                ("gateway, mp3", lambda: through_gateway("mp3")),
            ]
            for way, ask in ways if round_ % 2 else ways[::-1]:
                seconds = await ask()
                if round_ >= 0:
                    times[way].append(1000 * seconds)
    return times


async def leave_http(url: str, **more: Any) -> float:
    """Closes the connection after the first bytes; the time of that."""
    async with aiohttp.ClientSession() as session:
        response = await session.post(f"{url}/v1/audio/speech", json={**SLOW, **more})
        await response.content.readany()
        left = time.perf_counter()
        response.close()
    return left


async def leave_live(url: str, barge_in: bool) -> float:
    """Interrupts the speech, or closes the connection; the time of that."""
    async with connect(f"{url.replace('http', 'ws', 1)}/v1/audio/speech/stream", max_size=None) as socket:
        config = {name: value for name, value in SLOW.items() if name != "input"}
        for event in ({"type": "session.config", **config}, {"type": "input.text", "text": SLOW["input"]}):
            await socket.send(json.dumps(event))
        await socket.send(json.dumps({"type": "input.flush"}))
        while not isinstance(await socket.recv(), bytes):
            pass
        left = time.perf_counter()
        if barge_in:
            await socket.send(json.dumps({"type": "input.cancel"}))
        return left


def cancels(url: str, grpc_url: str, repeats: int) -> dict[str, list[float]]:
    """Milliseconds from leaving to the cancel at the talker, by how the caller left."""
    ways: dict[str, Callable[[], Awaitable[float]]] = {
        "HTTP": lambda: leave_http(url),
        "SSE": lambda: leave_http(url, stream_format="sse"),
        "WebSocket closed": lambda: leave_live(url, barge_in=False),
        "WebSocket, barge-in": lambda: leave_live(url, barge_in=True),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    with InferenceServerClient(grpc_url) as client:

        def told() -> int:
            # A cancel is a request of its own.
            return int(client.get_inference_statistics("voxcpm2_talker").model_stats[0].inference_count)

        for _ in range(repeats):
            for way, leave in ways.items():
                before = told()
                left = asyncio.run(leave())
                while told() < before + 2:
                    time.sleep(0.001)
                times[way].append(1000 * (time.perf_counter() - left))
                time.sleep(1.0)
    return times


async def load(url: str, streams: int, round_: int) -> tuple[int, float]:
    """How many streams were lost, and the seconds until the last had ended."""

    async def one(session: aiohttp.ClientSession, index: int) -> bool:
        body = {"input": TEXT, "response_format": "wav", "seed": 1000 * round_ + index, "max_seconds": 0.5}
        try:
            async with session.post(f"{url}/v1/audio/speech", json=body) as response:
                data = await response.read()
                return response.status == 200 and len(data) > WAV_HEADER_BYTES
        except aiohttp.ClientError:
            return False

    began = time.perf_counter()
    timeout, connector = aiohttp.ClientTimeout(total=300), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        whole = await asyncio.gather(*(one(session, index) for index in range(streams)))
    return whole.count(False), time.perf_counter() - began


def resident_mib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def show(title: str, times: dict[str, list[float]]) -> None:
    print(f"\n| {title} | p50 | p90 | worst | n |\n|---|---|---|---|---|")
    for way, values in times.items():
        p90 = statistics.quantiles(values, n=10)[-1]
        print(f"| {way} | {statistics.median(values):.1f} ms | {p90:.1f} | {max(values):.1f} | {len(values)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a tiny one of random weights where it is not given")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        (models := Path(folder) / "models").mkdir()
        checkpoint = args.checkpoint or write_tiny_checkpoint(Path(folder) / "voxcpm2_tiny")
        settings = ServerSettings(
            models=with_room(find_models(ROOT), models), checkpoints=checkpoint, ports=Ports(0, 0, 0), drain_seconds=5
        )
        with TritonServer(settings) as server:
            server.wait_ready(300)
            with gateway_before(server.grpc_url) as (url, process):
                times = asyncio.run(first_byte(url, server.grpc_url, args.repeats))
                show("first audio", times)
                added = statistics.median(times["gateway"]) - statistics.median(times["gRPC client"])
                print(f"\nadded by the gateway, p50: {added:.1f} ms")
                show("cancel", cancels(url, server.grpc_url, max(5, args.repeats // 10)))
                print(f"\n| round of {args.streams} streams | lost | seconds | gateway's memory |\n|---|---|---|---|")
                for round_ in range(args.rounds):
                    lost, seconds = asyncio.run(load(url, args.streams, round_))
                    print(f"| {round_ + 1} | {lost} | {seconds:.1f} | {resident_mib(process):.1f} MiB |", flush=True)


if __name__ == "__main__":
    main()
