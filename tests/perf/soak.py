"""A soak of the whole server: thousands of streams of every kind, and proof that each was right and nothing is left.

    python tests/perf/soak.py [--streams 2000] [--concurrency 32] [--checkpoint DIR] [--marked 84] [--seed 1]

Both pipelines, lengths of 0.3 to 3 s, random chunk schedules, stored voices, some of them replaced and removed all the
time, recordings that are sent again and again; of the callers 20 % leave, half of them before the first chunk, 5 % read
slowly, 3 % send what is refused. Seven of ten streams are marked: their request ran alone before, in the other pipeline
or the same, in chunks of the default schedule, and the samples must be the same, bit for bit; those of a stream that
was left, as far as they came. For a voice that is replaced they are those of one of its recordings, whole.

The exit code is 1 when something does not hold: see ``verdicts``. Sizes are compared between rests, after a tenth of
the streams and at the end. The default checkpoint is a tiny random one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from soak_streams import (
    BAD,
    PIPELINES,
    RECORDINGS,
    RESTLESS,
    STABLE_RECORDINGS,
    TAKES,
    UNKNOWN_VOICE,
    Ending,
    Manner,
    Marked,
    make_marked,
    play,
    random_manner,
    random_options,
    random_schedule,
    random_text,
)
from soak_watch import Process, SharedMemory, Stub, cache_events, free_places, processes, shared_memory

from triton_speech.serve.layout import REPOSITORIES, find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer
from triton_speech_client import AsyncSpeechClient, wire

ROOT = Path(__file__).resolve().parents[2]
TALKER_PLACES, CODEC_PLACES = 8, 64
CANCELS, SLOW, MARKED, REFUSED = 0.2, 0.05, 0.7, 0.03
GROWTH = 0.05
REST_SECONDS = 5.0
READY_SECONDS = 300.0
# No place may come back by its idle time, which would hide that it was lost.
PARAMETERS: Mapping[str, Mapping[str, object]] = {
    "voxcpm2": {"queue_seconds": 200},
    "voxcpm2_talker": {"deterministic": "true", "threads": 1, "max_num_seqs": TALKER_PLACES, "max_waiting": 256},
    "voxcpm2_codec": {"deterministic": "true", "threads": 1, "max_streams": CODEC_PLACES, "idle_seconds": 36_000},
    "voxcpm2_reference": {"threads": 1},
}


def copy_models(target: Path) -> Path:
    """The project's models with the parameters of the soak."""
    for repository in REPOSITORIES:
        shutil.copytree(find_models(ROOT) / repository, target / repository)
    for model, parameters in PARAMETERS.items():
        (path,) = target.glob(f"*/{model}/config.pbtxt")
        config = path.read_text(encoding="utf-8")
        for name, value in parameters.items():
            config = re.sub(rf'parameters \{{ key: "{name}".*\n', "", config)
            config += f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'
        path.write_text(config, encoding="utf-8")
    return target


@dataclass
class Tally:
    """What was seen so far. ``faults`` are sentences; there should be none."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        self.counts["faults"] += 1
        self.faults.append(text)


@dataclass
class Load:
    """The streams, from the first to the last, by callers that each send one after the other."""

    stub: Stub
    marked: list[Marked]
    source: random.Random
    tally: Tally = field(default_factory=Tally)

    async def run(self, streams: int, callers: int) -> None:
        numbers = itertools.count()

        async def call() -> None:
            while next(numbers) < streams:
                await self._one()

        await asyncio.gather(*(call() for _ in range(callers)))

    async def run_alone(self) -> None:
        """Every marked request, with nothing else on the server."""
        for number, marked in enumerate(self.marked):
            for options in marked.solo_options:
                ending = await play(self.stub, PIPELINES[number % 2], options)
                if ending.fault() or ending.errors:
                    raise RuntimeError(f"alone: {ending.fault()} {ending.errors}")
                marked.alone.append(ending.audio())

    async def _one(self) -> None:
        pipeline = self.source.choice(PIPELINES)
        schedule = random_schedule(self.source)
        if self.source.random() < REFUSED:
            wrong = {"text": random_text(self.source), **self.source.choice(BAD)}
            self._judge_refusal(pipeline, wrong, await play(self.stub, pipeline, wrong))
            return
        manner = random_manner(self.source, CANCELS / (1 - REFUSED), SLOW)
        marked = self.source.choice(self.marked) if self.source.random() < MARKED else None
        options = marked.options if marked else random_options(self.source, self.source.randrange(len(self.marked)))
        options = {**options, "chunk_schedule": schedule}
        ending = await play(self.stub, pipeline, options, manner)
        self._judge(pipeline, options, manner, ending, marked)

    def _judge_refusal(self, pipeline: str, options: Mapping[str, Any], ending: Ending) -> None:
        self._count(pipeline, "refused")
        if ending.fault() or len(ending.errors) != 1 or ending.samples or "internal error" in ending.errors[0]:
            self.tally.fault(f"{pipeline}: a bad input was not refused: {_short(options)}: {ending}")

    def _judge(
        self, pipeline: str, options: Mapping[str, Any], manner: Manner, ending: Ending, marked: Marked | None
    ) -> None:
        told = f"{pipeline} {_short(options)} {manner}"
        if fault := ending.fault():
            self.tally.fault(f"{told}: {fault}")
        elif ending.errors:
            if options.get("voice") in RESTLESS and UNKNOWN_VOICE in ending.errors[0]:
                self._count(pipeline, "voice was removed")
            else:
                self.tally.fault(f"{told}: {ending.errors}")
        elif ending.left:
            self._count(pipeline, "left between chunks" if ending.samples else "left before a chunk")
        else:
            self._count(pipeline, "whole")
            self.tally.counts["slow readers"] += manner.pause > 0
        if marked is not None and ending.samples:
            self._compare(told, ending, marked)

    def _compare(self, told: str, ending: Ending, marked: Marked) -> None:
        heard = ending.audio()
        self.tally.counts["compared, left" if ending.left else "compared, whole"] += 1
        self.tally.counts["compared, voice replaced"] += len(marked.alone) > 1
        wanted = [alone[: len(heard)] if ending.left else alone for alone in marked.alone]
        if not any(heard.tobytes() == samples.tobytes() for samples in wanted):
            self.tally.counts["unequal"] += 1
            same = [np.abs(heard - samples).max() if len(heard) == len(samples) else "length" for samples in wanted]
            self.tally.fault(f"{told}: not what it is alone: {len(heard)} samples, differences {same}")

    def _count(self, pipeline: str, what: str) -> None:
        self.tally.counts[f"{pipeline}: {what}"] += 1


def _short(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: f"{len(value)} bytes" if isinstance(value, bytes) else value for name, value in options.items()}


@contextlib.asynccontextmanager
async def restless_voices(url: str, source: random.Random, tally: Tally) -> Any:
    """Replaces and removes voices until the block ends."""
    over = asyncio.Event()

    async def change() -> None:
        there = set(RESTLESS)
        async with AsyncSpeechClient(url) as client:
            while not over.is_set():
                name = source.choice(RESTLESS)
                if name in there and source.random() < 0.2:
                    await client.remove_voice(name)
                    there.discard(name)
                    tally.counts["voices removed"] += 1
                else:
                    added = await client.add_voice(name, reference=RECORDINGS[source.choice(TAKES)])
                    if added.replaced != (name in there):
                        tally.fault(f"{name} was replaced: {added.replaced}")
                    there.add(name)
                    tally.counts["voices added"] += 1
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(over.wait(), source.uniform(0.1, 0.6))
            for name in set(RESTLESS) - there:
                await client.add_voice(name, reference=RECORDINGS[TAKES[0]])

    changing = asyncio.create_task(change())
    try:
        yield
    finally:
        over.set()
        await changing


@dataclass(frozen=True)
class Moment:
    """Sizes at a rest, after ``streams`` streams."""

    streams: int
    processes: dict[str, Process]
    shared_memory: SharedMemory
    cache: dict[str, int]
    free: list[str]


@dataclass
class Soak:
    server: TritonServer
    checkpoint: Path
    load: Load
    url: str
    moments: list[Moment] = field(default_factory=list)
    seconds: float = 0.0

    async def rest(self, streams: int) -> Moment:
        """Waits until streams that were left in the ensemble have come to their cap, then looks."""
        await asyncio.sleep(REST_SECONDS)
        free = await free_places(self.load.stub, self.checkpoint, talker=TALKER_PLACES, codec=CODEC_PLACES)
        memory = shared_memory(self.server.shared_memory_prefix or "")
        events = cache_events(self.server.metrics_url)
        moment = Moment(streams, processes(self.server.pid), memory, events, free)
        self.moments.append(moment)
        return moment

    async def run(self, streams: int, callers: int) -> None:
        async with AsyncSpeechClient(self.url) as client:
            for name, recordings in STABLE_RECORDINGS.items():
                await client.add_voice(name, **recordings)
            for name, take in zip(RESTLESS, itertools.cycle(TAKES)):
                await client.add_voice(name, reference=RECORDINGS[take])
        await self.load.run_alone()
        await self.rest(0)
        done = 0
        for share in (0.1, 0.4, 0.7, 1.0):
            began = time.monotonic()
            async with restless_voices(self.url, self.load.source, self.load.tally):
                await self.load.run(round(share * streams) - done, callers)
            self.seconds += time.monotonic() - began
            done = round(share * streams)
            await self.rest(done)
            print(f"{done} streams, {self.seconds:.0f} s, {self.load.tally.counts['faults']} faults", flush=True)


def encodes(marked: list[Marked]) -> int:
    """Recordings that have to be encoded once: each file in each role."""
    asked = [*STABLE_RECORDINGS.values(), *({"reference": RECORDINGS[take]} for take in TAKES)]
    asked += [options for one in marked for options in one.solo_options]
    return len({(role, one[role]) for one in asked for role in ("reference", "prompt_audio") if role in one})


def verdicts(soak: Soak, streams: int, log: str, code: int | None, left_behind: int) -> Iterator[tuple[bool, str]]:
    """What has to hold, and whether it does."""
    counts, tally = soak.load.tally.counts, soak.load.tally
    before, warm, *_, end = soak.moments
    ended = sum(number for name, number in counts.items() if name.startswith(PIPELINES))
    yield not tally.faults and ended == streams, f"every stream ended once and as it should: {ended} of {streams}"
    compared = counts["compared, whole"] + counts["compared, left"]
    yield compared > 0 and not counts["unequal"], f"{compared} streams compared, {counts['unequal']} unlike themselves"
    for moment in soak.moments:
        yield not moment.free, f"every place is free after {moment.streams} streams: {'; '.join(moment.free) or 'yes'}"
    yield before.cache["misses"] == encodes(soak.load.marked), f"each recording was encoded once: {before.cache}"
    more = {event: end.cache[event] - before.cache[event] for event in end.cache}
    yield more["misses"] == 0 and more["hits"] > 0, f"the load encoded nothing again: {more}"
    for name, process in warm.processes.items():
        growth = end.processes[name].resident / process.resident - 1 if name in end.processes else float("inf")
        yield growth <= GROWTH, f"memory of {name}: {100 * growth:+.1f} %"
    total = [sum(process.resident for process in moment.processes.values()) for moment in (warm, end)]
    yield total[1] <= (1 + GROWTH) * total[0], f"memory in all: {100 * (total[1] / total[0] - 1):+.1f} %"
    memory = (warm.shared_memory, end.shared_memory)
    grown = memory[1].files > memory[0].files or memory[1].bytes > memory[0].bytes
    yield not grown, f"/dev/shm: {memory[0]} after a tenth, {memory[1]} at the end"
    yield left_behind == 0, f"/dev/shm after the stop: {left_behind} files"
    yield code == 0, f"the server lived to its stop, and ended with code {code}"
    # 15 is the soak's own.
    bad = re.findall(r"Traceback|Signal \((?!15\))\d+\)|is not healthy", log)
    yield not bad, f"the server's log holds no traceback and no crash: {bad or 'yes'}"


def print_tables(soak: Soak) -> None:
    print("\n| streams | " + " | ".join(str(moment.streams) for moment in soak.moments) + " |")
    print("|---|" + "---|" * len(soak.moments))
    for name in soak.moments[0].processes:
        cells = []
        for moment in soak.moments:
            if (one := moment.processes.get(name)) is None:
                cells.append("gone")
            else:
                cells.append(f"{one.resident:.1f} ({one.shared:.1f}) {one.threads} {one.files}")
        print(f"| {name} | " + " | ".join(cells) + " |")
    memory = [moment.shared_memory for moment in soak.moments]
    print("| /dev/shm | " + " | ".join(f"{one.files} files, {one.bytes / 2**20:.1f}" for one in memory) + " |")
    print("Resident MiB (shared part), threads, open files.\n")
    for name, number in sorted(soak.load.tally.counts.items()):
        print(f"{number:6d}  {name}")
    for fault in soak.load.tally.faults[:20]:
        print(f"  fault: {fault[:600]}")
    print()


async def soak_server(server: TritonServer, checkpoint: Path, args: argparse.Namespace) -> Soak:
    source = random.Random(args.seed)
    async with grpc.aio.insecure_channel(server.grpc_url, options=wire.CHANNEL_OPTIONS) as channel:
        load = Load(Stub(channel), make_marked(source, args.marked), source)
        soak = Soak(server, checkpoint, load, server.grpc_url)
        await soak.run(args.streams, args.concurrency)
        return soak


def stop(server: TritonServer, prefix: str) -> int:
    """Ends the server; how many of its files are left in /dev/shm before the launcher removes what there is."""
    os.kill(server.pid, signal.SIGTERM)
    while server.poll() is None:
        time.sleep(0.1)
    return shared_memory(prefix).files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=32, help="streams in flight")
    parser.add_argument("--checkpoint", type=Path, help="of VoxCPM2 (default: a tiny one with random weights)")
    parser.add_argument("--marked", type=int, default=84, help="different requests that run alone before")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="keep the server's log in this file")
    args = parser.parse_args()
    # Stages that each spin on all cores slow each other down tenfold.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        models = copy_models(Path(folder) / "models")
        (voices := Path(folder) / "voices").mkdir()
        checkpoint = args.checkpoint or _tiny_checkpoint(Path(folder) / "voxcpm2_tiny")
        log_file = args.log or Path(folder) / "server.log"
        settings = ServerSettings(models, checkpoint, voices, ports=Ports(0, 0, 0), log_file=log_file)
        with TritonServer(settings) as server:
            server.wait_ready(READY_SECONDS)
            prefix = server.shared_memory_prefix or ""
            soak = asyncio.run(soak_server(server, checkpoint, args))
            by_itself = stop(server, prefix)
            log, code = server.log_text(), server.poll()
        left_behind = shared_memory(prefix).files
    print_tables(soak)
    print(f"{args.streams} streams, {args.concurrency} in flight: {soak.seconds:.0f} s")
    print(f"/dev/shm: tritonserver itself left {by_itself} files for the launcher\n")
    results = list(verdicts(soak, args.streams, log, code, left_behind))
    for holds, text in results:
        print(f"{'ok  ' if holds else 'FAIL'} {text}")
    return 0 if all(holds for holds, _ in results) else 1


def _tiny_checkpoint(folder: Path) -> Path:
    from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

    return write_tiny_checkpoint(folder)


if __name__ == "__main__":
    sys.exit(main())
