"""Kills each stage's process again and again under load, and measures when callers hear of it and when it is back.

    python tests/perf/kill_stages.py --kills 20

A launcher (``triton-speech serve``) keeps the server; streams of both pipelines are the load, and what runs through a
stage too quickly to be hit is sent there just before its kill (``kill_load.py``), so that each row has callers.
``ran``: streams and calls that had begun at the kills, and how many of these broke. ``heard``: from the kill until the
last that broke had its error. ``back``: from the kill until both pipelines (for ``voices``: that model) have answered a
request that began afterwards. ``aborts``: how often tritonserver itself went down with the stage and was started again;
those kills are in the other columns too.

The exit code is 1 when somebody was never told, when it took longer than ``--heard-seconds`` or ``--back-seconds``, or
when no caller of a row was hit: that row proves nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from kill_load import Load, Stream, Stub
from launched import OPTIONS, Launcher
from soak_streams import PIPELINES

from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech_client import AsyncSpeechClient
from triton_speech_client.errors import SpeechClientError

STAGES = ("voxcpm2_frontend", "voxcpm2_reference", "voxcpm2_talker", "voxcpm2_codec", "voxcpm2", "voices")
NEVER_SECONDS = 15.0
BACK_SECONDS = 60.0
RETRY_SECONDS = 0.2


@dataclass
class Kill:
    """What one kill did to the streams that ``ran``; ``told``: what the broken ones heard. Seconds from the kill."""

    ran: int
    broken: int
    never: int
    heard: float | None
    back: float
    aborted: bool
    told: set[str]


async def until(answers: Callable[[], Awaitable[bool]], since: float) -> float:
    while time.monotonic() - since < BACK_SECONDS:
        try:
            if await asyncio.wait_for(answers(), 5):
                return time.monotonic() - since
        except (asyncio.TimeoutError, SpeechClientError, grpc.RpcError):
            pass
        await asyncio.sleep(RETRY_SECONDS)
    return BACK_SECONDS


async def kill_once(launcher: Launcher, load: Load, model: str) -> Kill:
    while not launcher.report()["ready"]:
        await asyncio.sleep(0.2)
    await asyncio.sleep(random.uniform(1.0, 2.0))
    restarts = launcher.report()["restarts"]
    await load.hold(model)
    streams = list(load.running)
    launcher.kill(model)
    killed = time.monotonic()

    async def speaks(pipeline: str) -> bool:
        async with grpc.aio.insecure_channel(load.url, options=OPTIONS) as channel:
            return not (await load.one(Stub(channel), pipeline, max_seconds=0.2)).fault

    async def lists() -> bool:
        async with AsyncSpeechClient(load.url, retries=0) as client:
            return bool(await client.voices())

    if model == "voices":
        backs = [until(lists, killed)]
    else:
        backs = [until(lambda p=pipeline: speaks(p), killed) for pipeline in PIPELINES]  # type: ignore[misc]
    back = max(await asyncio.gather(*backs))
    while any(stream.ended is None for stream in streams) and time.monotonic() - killed < NEVER_SECONDS:
        await asyncio.sleep(RETRY_SECONDS)
    return judge(streams, killed, back, aborted=launcher.report()["restarts"] > restarts)


def judge(streams: list[Stream], killed: float, back: float, *, aborted: bool) -> Kill:
    broken = [stream for stream in streams if stream.ended is not None and stream.fault]
    never = sum(stream.ended is None for stream in streams)
    heard = max((stream.ended - killed for stream in broken if stream.ended), default=None)
    told = {f"{stream.model}: {stream.fault[:90]}" for stream in broken}
    return Kill(len(streams), len(broken), never, heard, back, aborted, told)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} / {max(values):.2f}" if values else "-"


def print_table(kills: dict[str, list[Kill]]) -> None:
    print("| stage | kills | ran / broken | heard p50 / worst, s | never heard | back p50 / worst, s | aborts |")
    print("|---|---|---|---|---|---|---|")
    for stage, of_stage in kills.items():
        ran, broken = sum(kill.ran for kill in of_stage), sum(kill.broken for kill in of_stage)
        print(
            f"| `{stage}` | {len(of_stage)} | {ran} / {broken} | {spread(heard_of(of_stage))} | "
            f"{sum(kill.never for kill in of_stage)} | {spread([kill.back for kill in of_stage])} | "
            f"{sum(kill.aborted for kill in of_stage)} |"
        )


def heard_of(kills: list[Kill]) -> list[float]:
    return [kill.heard for kill in kills if kill.heard is not None]


def faults(kills: dict[str, list[Kill]], heard_seconds: float, back_seconds: float) -> list[str]:
    """What does not hold, in sentences."""
    found = []
    for stage, of_stage in kills.items():
        heard = heard_of(of_stage)
        if not heard:
            found.append(f"{stage}: no caller was hit, so nothing is known of hearing")
        elif max(heard) > heard_seconds:
            found.append(f"{stage}: a caller heard after {max(heard):.2f} s")
        if never := sum(kill.never for kill in of_stage):
            found.append(f"{stage}: {never} callers never heard")
        if max(kill.back for kill in of_stage) > back_seconds:
            found.append(f"{stage}: back after {max(kill.back for kill in of_stage):.2f} s")
    return found


async def run(launcher: Launcher, args: argparse.Namespace) -> dict[str, list[Kill]]:
    load = Load(launcher.urls["grpc"])
    workers = [
        asyncio.create_task(load.work(args.pipelines[number % len(args.pipelines)])) for number in range(args.streams)
    ]
    kills: dict[str, list[Kill]] = {stage: [] for stage in args.stages}
    for number in range(args.kills):
        for stage in args.stages:
            kill = await kill_once(launcher, load, stage)
            kills[stage].append(kill)
            for worker in workers:
                if worker.done():
                    worker.result()
            print(f"{number + 1} {stage}: {kill}", flush=True)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each stage")
    parser.add_argument("--streams", type=int, default=4, help="in flight")
    parser.add_argument("--pipelines", nargs="+", default=list(PIPELINES), choices=PIPELINES)
    parser.add_argument("--stages", nargs="+", default=list(STAGES))
    parser.add_argument("--heard-seconds", type=float, default=2.0, help="longest until a caller hears of a kill")
    parser.add_argument("--back-seconds", type=float, default=5.0, help="longest until it works again")
    parser.add_argument("--log", type=Path, help="keep the server's and the launcher's log in this file")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_tiny_checkpoint(Path(folder) / "voxcpm2_tiny")
        (voices := Path(folder) / "voices").mkdir()
        launcher = Launcher(checkpoint, voices, args.log or Path(folder) / "log", ["--profile", "cpu"])
        try:
            kills = asyncio.run(run(launcher, args))
        finally:
            began = time.monotonic()
            code = launcher.stop()
            print(f"the launcher ended with code {code} after {time.monotonic() - began:.1f} s")
    print_table(kills)
    found = faults(kills, args.heard_seconds, args.back_seconds)
    print(
        "\n".join(f"FAIL {fault}" for fault in found) or "every caller heard in time, and every stage was back in time"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
