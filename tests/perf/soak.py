"""A soak of the whole server: thousands of streams of every kind, and proof that each was right and nothing is left.

    python tests/perf/soak.py [--streams 2000] [--concurrency 32] [--checkpoint DIR] [--marked 84] [--seed 1]

Both pipelines, lengths of 0.3 to 3 s, random chunk schedules, stored voices, some of them replaced and removed all the
time, recordings that are sent again and again; of the callers 20 % leave, half of them before the first chunk, 5 % read
slowly, 3 % send what is refused. Seven of ten streams are marked: their request ran alone before, in the other pipeline
or the same, in chunks of the default schedule, and the samples must be the same, bit for bit; those of a stream that
was left, as far as they came. For a voice that is replaced they are those of one of its recordings, whole.

The exit code is 1 when something does not hold, see ``soak_report.py``. Sizes are compared between rests: after a tenth
of the streams, which came from half as many callers more than the others, and at the end. The default checkpoint is a
tiny random one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from soak_load import Load, restless_voices
from soak_report import print_tables, verdicts
from soak_streams import RECORDINGS, RESTLESS, STABLE_RECORDINGS, TAKES, make_marked
from soak_watch import Moment, Stub, cache_events, free_places, processes, shared_memory

from triton_speech.serve.layout import REPOSITORIES, find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer
from triton_speech_client import AsyncSpeechClient, wire

ROOT = Path(__file__).resolve().parents[2]
TALKER_PLACES, CODEC_PLACES = 8, 64
SEGMENTS = (0.1, 0.4, 0.7, 1.0)
"""Shares of the streams after which there is a rest."""
WARM_UP = 1.5
"""In the first segment there are so many times more callers: what grows with the most that runs at once has grown."""
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
class Soak:
    """The load on one server, and what was seen of it at each rest."""

    server: TritonServer
    checkpoint: Path
    load: Load
    url: str
    moments: list[Moment] = field(default_factory=list)
    seconds: float = 0.0

    async def rest(self, streams: int) -> None:
        """Waits until streams that were left in the ensemble have come to their cap, then looks."""
        await asyncio.sleep(REST_SECONDS)
        free = await free_places(self.load.stub, self.checkpoint, talker=TALKER_PLACES, codec=CODEC_PLACES)
        memory = shared_memory(self.server.shared_memory_prefix or "")
        events = cache_events(self.server.metrics_url)
        self.moments.append(Moment(streams, processes(self.server.pid), memory, events, free))

    async def run(self, streams: int, callers: int) -> None:
        """Stores the voices, hears every marked request alone, and then sends all streams."""
        async with AsyncSpeechClient(self.url) as client:
            for name, recordings in STABLE_RECORDINGS.items():
                await client.add_voice(name, **recordings)
            for name, take in zip(RESTLESS, itertools.cycle(TAKES)):
                await client.add_voice(name, reference=RECORDINGS[take])
        await self.load.run_alone()
        await self.rest(0)
        done = 0
        for share in SEGMENTS:
            began = time.monotonic()
            async with restless_voices(self.url, self.load.source, self.load.tally):
                await self.load.run(round(share * streams) - done, callers if done else round(WARM_UP * callers))
            self.seconds += time.monotonic() - began
            done = round(share * streams)
            await self.rest(done)
            print(f"{done} streams, {self.seconds:.0f} s, {self.load.tally.counts['faults']} faults", flush=True)


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
    print_tables(soak.load.tally, soak.moments)
    print(f"{args.streams} streams, {args.concurrency} in flight: {soak.seconds:.0f} s")
    print(f"/dev/shm: tritonserver itself left {by_itself} files for the launcher\n")
    results = list(verdicts(soak.load.tally, soak.load.marked, soak.moments, log, code, left_behind))
    for holds, text in results:
        print(f"{'ok  ' if holds else 'FAIL'} {text}")
    return 0 if all(holds for holds, _ in results) else 1


def _tiny_checkpoint(folder: Path) -> Path:
    from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

    return write_tiny_checkpoint(folder)


if __name__ == "__main__":
    sys.exit(main())
