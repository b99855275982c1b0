"""A soak of the whole server: thousands of streams of every kind, and proof that each was right and nothing is left.

    python tests/perf/soak.py [--streams 2000] [--minutes M] [--concurrency 32] [--kills K] [--family FAMILY]

On the server as ``triton-speech serve`` runs it, in both pipelines: lengths of 0.3 to 3 s and long texts of several
segments, random chunk schedules, two priorities, deadlines that pass, stored voices, some of them replaced and removed
all the time, recordings that are sent again and again; of the callers 20 % leave, half of them before the first chunk,
5 % read slowly, 5 % send a row of ``tests/server/bad_inputs.yaml``. Seven of ten streams are marked: their request ran
alone before, in the other pipeline or the same, in chunks of the default schedule, and the samples must be the same,
bit for bit; those of a stream that was cut off, as far as they came. For a voice that is replaced they are those of
one of its recordings, whole.

``--kills`` kills the process of one stage after the other in mid-load. A stream that is hit has to end once, with an
error that says that the server was not available, within ``--heard-seconds``; any other error is a fault.

The exit code is 1 when something does not hold, see ``soak_report.py``. Sizes are compared over the last two
fifths of the load: all that ever runs at once has run by then, and what the kills brought anew is warm. The default
checkpoint is a tiny random one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import soak_family
from launched import OPTIONS, Launcher
from soak_kills import Kills
from soak_load import Load, Stub
from soak_metrics import Scrape, lines_of, logged_ends
from soak_report import HEALED, Findings, print_tables, verdicts
from soak_streams import SEGMENT_CHARS, make_marked
from soak_voices import Restless, store_voices
from soak_watch import Moment, free_places, processes, shared_memory

from triton_speech.serve.layout import REPOSITORIES, find_models

ROOT = Path(__file__).resolve().parents[2]
TALKER_PLACES, CODEC_PLACES = 8, 64
SEGMENTS = (0.1, 0.4, 0.1, 0.4)
"""Shares of the load between rests: a warm-up, the part with the kills, a second warm-up, the part without growth."""
WARM_UPS, KILLING = (0, 2), 1
WARM_UP = 1.5
"""In a warm-up there are so many times more callers: what grows with the most that runs at once has grown."""
LEAST_WARM_UP = 150
"""Streams; until then threads and heaps grow."""
REST_SECONDS = 5.0
IDLE_SECONDS = 20.0
"""With kills: the codec's places of streams that were lost with another stage come back so late, when asked for."""
DEFAULT_STREAMS = 2000
# No place may come back by its idle time, which would hide that it was lost. Streams are as long as seconds allow.
PARAMETERS: Mapping[str, Mapping[str, object]] = {
    # By what follows the family's name.
    "": {"queue_seconds": 200},
    "_frontend": {"segment_chars": SEGMENT_CHARS, "frames_per_token": 0.3},
    "_talker": {"deterministic": "true", "threads": 1, "max_num_seqs": TALKER_PLACES, "max_waiting": 256},
    "_codec": {"deterministic": "true", "threads": 1, "max_streams": CODEC_PLACES, "idle_seconds": 36_000},
    "_reference": {"threads": 1},
}


def copy_models(target: Path, *, with_kills: bool) -> Path:
    """The project's models with the parameters of the soak."""
    family = soak_family.chosen.name
    changed = {family + part: dict(parameters) for part, parameters in PARAMETERS.items()}
    if with_kills:
        changed[f"{family}_codec"]["idle_seconds"] = IDLE_SECONDS
    for repository in REPOSITORIES:
        shutil.copytree(find_models(ROOT) / repository, target / repository)
    for model, parameters in changed.items():
        (path,) = target.glob(f"*/{model}/config.pbtxt")
        config = path.read_text(encoding="utf-8")
        for name, value in parameters.items():
            config = re.sub(rf'parameters \{{ key: "{name}".*\n', "", config)
            config += f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'
        path.write_text(config, encoding="utf-8")
    return target


class Quota:
    """A part of the load: so many streams or seconds, whichever comes first."""

    def __init__(self, load: Load, streams: float, seconds: float) -> None:
        self._load, self._streams, self._seconds = load, streams, seconds
        self._first, self._began = load.begun, time.monotonic()

    def share(self) -> float:
        """What has begun of it, 0 to 1."""
        streams, seconds = self._load.begun - self._first, time.monotonic() - self._began
        return max(streams / self._streams, seconds / self._seconds)


@dataclass
class Soak:
    """The load on one server, and what was seen of it at each rest."""

    launcher: Launcher
    checkpoint: Path
    log: Path
    load: Load
    kills: Kills
    stub: Stub
    moments: list[Moment] = field(default_factory=list)
    encoded: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def scrape(self) -> Scrape:
        return Scrape.of(self.launcher.urls["metrics"])

    def lines(self) -> list[dict[str, object]]:
        return lines_of(self.log.read_text(encoding="utf-8", errors="replace"))

    async def rest(self) -> None:
        """Waits until the server has ended and told everything, then looks."""
        lost = len(self.moments) == HEALED and self.kills.made
        await asyncio.sleep(REST_SECONDS + (IDLE_SECONDS if lost else 0))
        if lost:
            # Which is when the codec looks for them.
            await free_places(self.stub, self.checkpoint, talker=TALKER_PLACES, codec=CODEC_PLACES)
            await asyncio.sleep(1)
        scrape, logged = self.scrape(), logged_ends(self.lines())
        free = await free_places(self.stub, self.checkpoint, talker=TALKER_PLACES, codec=CODEC_PLACES)
        memory = shared_memory(self.launcher.shared_memory_prefix())
        sizes = processes(self.launcher.pid)
        self.moments.append(Moment(self.load.begun, sizes, memory, scrape, logged, free))
        faults = self.load.tally.counts["faults"]
        print(
            f"{self.load.begun} streams, {self.seconds:.0f} s, {faults} faults, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )

    async def run(self, streams: float, seconds: float, callers: int) -> None:
        """Stores the voices, hears every marked request and every bad input alone, and then sends all streams."""
        await store_voices(self.load.url)
        await self.load.run_alone(self.stub)
        self.encoded = await self._settled_cache()
        await self.load.refuse_alone(self.stub)
        await self.rest()
        restless = Restless(self.load.url, self.load.source, self.load.tally, self.kills)
        for number, share in enumerate(SEGMENTS):
            part = max(share * streams, LEAST_WARM_UP) if number in WARM_UPS else share * streams
            quota = Quota(self.load, part, share * seconds)
            began = time.monotonic()
            async with restless.changing():
                killing = asyncio.create_task(self._kill(quota, number))
                many = round(WARM_UP * callers) if number in WARM_UPS else callers
                await self.load.run(lambda quota=quota, killing=killing: quota.share() >= 1 and killing.done(), many)
                await killing
            self.seconds += time.monotonic() - began
            await self.rest()

    async def _kill(self, quota: Quota, segment: int) -> None:
        if segment == KILLING:
            await self.kills.run(quota.share)

    async def _settled_cache(self) -> dict[str, int]:
        await asyncio.sleep(1)
        return self.scrape().cache()


async def soak_server(launcher: Launcher, checkpoint: Path, log: Path, args: argparse.Namespace) -> Soak:
    source = random.Random(args.seed)
    url = launcher.urls["grpc"]
    marked, long = make_marked(source, args.marked), make_marked(source, args.marked // 7, are_long=True)
    kills = Kills(launcher, args.kills, args.heard_seconds)
    async with grpc.aio.insecure_channel(url, options=OPTIONS) as channel:
        load = Load(url, marked, long, source, kills)
        soak = Soak(launcher, checkpoint, log, load, kills, Stub(channel))
        streams = args.streams or (DEFAULT_STREAMS if args.minutes is None else float("inf"))
        await soak.run(streams, float("inf") if args.minutes is None else 60 * args.minutes, args.concurrency)
        return soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--streams", type=int, help=f"so many in all (default: {DEFAULT_STREAMS}, with --minutes any number)")
    add("--minutes", type=float, help="of load; what comes first, this or --streams, ends it")
    add("--concurrency", type=int, default=32, help="streams in flight")
    add("--kills", type=int, default=0, help="of the stages in turn")
    add("--heard-seconds", type=float, default=2.0, help="from a kill until whom it hits has heard of it")
    add("--family", choices=sorted(soak_family.FAMILIES), default="voxcpm2", help="whose pipelines (%(default)s)")
    add("--checkpoint", type=Path, help="of the family (default: a tiny one with random weights)")
    add("--marked", type=int, default=84, help="different requests that run alone before")
    add("--seed", type=int, default=1)
    add("--log", type=Path, help="keep the logs of server and launcher in this file, which must not exist")
    args = parser.parse_args()
    soak_family.choose(args.family)
    # Stages that each spin on all cores slow each other down tenfold.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        models = copy_models(Path(folder) / "models", with_kills=args.kills > 0)
        (voices := Path(folder) / "voices").mkdir()
        checkpoint = args.checkpoint or soak_family.chosen.write_tiny_checkpoint(Path(folder))
        log = args.log or Path(folder) / "log"
        log.touch(exist_ok=False)
        launcher = Launcher(checkpoint, voices, log, ["--models", models])
        with contextlib.ExitStack() as stack:
            stack.callback(launcher.end)
            prefix = launcher.shared_memory_prefix()
            soak = asyncio.run(soak_server(launcher, checkpoint, log, args))
            code = launcher.stop()
        found = Findings(
            soak.load,
            soak.kills,
            soak.moments,
            soak.encoded,
            soak.lines(),
            log.read_text(encoding="utf-8", errors="replace"),
            code,
            shared_memory(prefix).files,
        )
    print_tables(found)
    alone = soak.moments[0].streams
    print(f"{soak.load.begun - alone} streams, {args.concurrency} in flight: {soak.seconds:.0f} s")
    print(f"Before, {alone} bad inputs and every marked request went alone.\n")
    results = list(verdicts(found))
    for holds, text in results:
        print(f"{'ok  ' if holds else 'FAIL'} {text}")
    return 0 if all(holds for holds, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
