"""The whole way on this machine: server start, first audio, real-time factor, memory, by number of streams.

    python tests/perf/bench_pipeline.py [--checkpoint DIR] [--profile cpu] [--streams 1 2 4 8] [--repeats 10]
        [--pipeline voxcpm2] [--max-seconds 8]

Definitions. First audio: from sending the request to the first chunk that can be played, at the client.
Real-time factor of a stream: (end - first audio) / seconds of audio; below 1 it plays without a gap, all else equal.
Underrun: the longest time that a player that starts at the first chunk would have had to wait for a later one.
Audio per second: seconds of audio of all streams, by the wall time of their round.
Each round starts its streams at once with different texts and seeds, from ``--processes`` client processes. The first
round is thrown away. Load of other kinds, on a server that runs already: ``triton-speech bench``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

from triton_speech.serve.layout import find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer
from triton_speech_client.bench.load import LoadProcesses
from triton_speech_client.bench.speakers import Target
from triton_speech_client.bench.streams import Job, Played
from triton_speech_client.bench.summary import percentile
from triton_speech_client.bench.texts import bundled_texts

ROOT = Path(__file__).resolve().parents[2]


def measure(processes: LoadProcesses, streams: int, repeats: int) -> dict[str, float]:
    texts = bundled_texts()
    played: list[Played] = []
    rates = []
    for round_ in range(repeats + 1):
        jobs = [Job(texts[(round_ + i) % len(texts)], 1000 * round_ + i) for i in range(streams)]
        run = processes.play_together(jobs)
        if failed := [one for one in run.played if not one.ok]:
            raise SystemExit(f"{failed[0].failure}: {failed[0].failure_text}")
        if round_:
            played += run.played
            rates.append(sum(one.seconds for one in run.played) / (run.end - run.begin))
    first = [1000 * one.first_audio for one in played]
    factor = [one.playing_factor for one in played]
    return {
        "streams": streams,
        "first audio p50 ms": percentile(first, 0.5),
        "p90 ms": percentile(first, 0.9),
        "RTF p50": percentile(factor, 0.5),
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
    parser.add_argument("--max-seconds", type=float, help="of each stream; one of random weights never ends by itself")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    settings = ServerSettings(
        models=find_models(ROOT), checkpoints=args.checkpoint, profile=args.profile, ports=Ports(0, 0, 0)
    )
    began = time.monotonic()
    with TritonServer(settings) as server:
        server.wait_ready(600)
        ready = time.monotonic() - began
        options = {"max_seconds": args.max_seconds} if args.max_seconds else {}
        target = Target(server.grpc_url, args.pipeline, options=options)
        with LoadProcesses(target, args.processes) as processes:
            rows = [measure(processes, n, args.repeats) for n in args.streams]
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
