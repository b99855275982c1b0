"""The whole way on this machine: server start, first audio, real-time factor, memory, by number of streams.

    python tests/perf/bench_pipeline.py [--checkpoint DIR] [--profile cpu] [--streams 1 2 4 8] [--repeats 10]

Definitions. First audio: from sending the request to the first chunk that can be played, at the client.
Real-time factor of a stream: (end - first audio) / seconds of audio; below 1 it plays without a gap, all else equal.
Underrun: the longest time that a player that starts at the first chunk would have had to wait for a later one.
Audio per second: seconds of audio of all streams, by the wall time of their round.
Each round starts its streams at once with different texts and seeds, from ``--processes`` client processes. The first
round is thrown away.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from triton_speech.serve.layout import find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer
from triton_speech_client import AsyncSpeechClient

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    "Good morning, the train to the city leaves in ten minutes.",
    "Could you please open the window and close the door?",
    "The weather will be warm and sunny in the afternoon.",
    "She bought three apples and a loaf of bread at the market.",
    "Please call me back when you have found the keys.",
    "The old man walked slowly along the river with his dog.",
    "We will meet at the corner of the street at seven.",
    "I would like a cup of coffee with a little milk.",
]


Job = tuple[str, int]
"""Text and seed."""


@dataclass(frozen=True)
class Played:
    first_audio: float
    real_time_factor: float
    underrun: float
    seconds: float


async def play(client: AsyncSpeechClient, text: str, seed: int) -> Played:
    began = time.perf_counter()
    first = audio = underrun = 0.0
    async for chunk in client.stream(text, seed=seed, pcm16=True):
        now = time.perf_counter() - began
        if not audio:
            first = now
        underrun = max(underrun, now - first - audio)
        audio += len(chunk.samples) / chunk.sample_rate
    return Played(first, (time.perf_counter() - began - first) / audio, underrun, audio)


class Caller:
    """What each load process holds from round to round: an event loop, and a client that is connected."""

    held: Caller | None = None

    def __init__(self, url: str, pipeline: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = AsyncSpeechClient(url, pipeline)

    async def play_all(self, jobs: Sequence[Job], start: float) -> list[Played]:
        await asyncio.sleep(start - time.time())
        return await asyncio.gather(*(play(self.client, *job) for job in jobs))


def call(url: str, pipeline: str, jobs: Sequence[Job], start: float) -> tuple[list[Played], float]:
    """Plays some of a round's streams from the time ``start`` on; also the time of their end."""
    if Caller.held is None:
        Caller.held = Caller(url, pipeline)
    return Caller.held.loop.run_until_complete(Caller.held.play_all(jobs, start)), time.time()


def measure(processes: int, url: str, pipeline: str, streams: int, repeats: int) -> dict[str, float]:
    played: list[Played] = []
    rates = []
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for round_ in range(repeats + 1):
            jobs = [(TEXTS[(round_ + i) % len(TEXTS)], 1000 * round_ + i) for i in range(streams)]
            # Time for the processes to start in the first round, to wake in the others.
            start = time.time() + (0.2 if round_ else 3.0)
            shares = [jobs[i::processes] for i in range(min(processes, streams))]
            done = list(pool.map(call, repeat(url), repeat(pipeline), shares, repeat(start)))
            results = [one for part, _ in done for one in part]
            if round_:
                played += results
                rates.append(sum(one.seconds for one in results) / (max(end for _, end in done) - start))

    def at(values: list[float], share: float) -> float:
        return sorted(values)[min(len(values) - 1, int(share * len(values)))]

    first = [1000 * one.first_audio for one in played]
    factor = [one.real_time_factor for one in played]
    return {
        "streams": streams,
        "first audio p50 ms": at(first, 0.5),
        "p90 ms": at(first, 0.9),
        "RTF p50": at(factor, 0.5),
        "RTF worst": max(factor),
        "underrun worst ms": 1000 * max(one.underrun for one in played),
        "audio-s/s": statistics.median(rates),
        "audio-s/s least": min(rates),
        "requests": len(played),
    }


def resident_mib(pid: int) -> float:
    """Memory of the server and all its stubs, shared pages counted once for each."""
    total = 0
    pids = [pid]
    while pids:
        one = pids.pop()
        try:
            status = Path(f"/proc/{one}/status").read_text(encoding="utf-8")
            for task in Path(f"/proc/{one}/task").iterdir():
                pids += map(int, (task / "children").read_text(encoding="utf-8").split())
        except FileNotFoundError:
            continue
        total += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
    return total / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "checkpoints" / "quickstart")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--pipeline", default="voxcpm2")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--processes", type=int, default=1, help="load generators; more for many streams on many cores")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    settings = ServerSettings(
        models=find_models(ROOT), checkpoints=args.checkpoint, profile=args.profile, ports=Ports(0, 0, 0)
    )
    began = time.monotonic()
    with TritonServer(settings) as server:
        server.wait_ready(600)
        ready = time.monotonic() - began
        rows = [measure(args.processes, server.grpc_url, args.pipeline, n, args.repeats) for n in args.streams]
        memory = resident_mib(server.pid)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, checkpoint {args.checkpoint.name},")
    print(f"profile {args.profile}, pipeline {args.pipeline}, {args.repeats} rounds for each number of streams,")
    print(f"{args.processes} load processes")
    print(f"server ready in {ready:.1f} s; resident memory of all its processes {memory:.0f} MiB\n")
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(f"{v:.0f}" if v >= 100 or v == int(v) else f"{v:.2f}" for v in row.values()) + " |")
    if args.json:
        args.json.write_text(json.dumps({"ready_s": ready, "rss_mib": memory, "rows": rows}, indent=1), "utf-8")


if __name__ == "__main__":
    main()
