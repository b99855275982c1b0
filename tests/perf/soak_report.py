"""What the soak found: the tables of what was seen, and what has to hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import soak_family
from soak_kills import Kills, print_kills
from soak_load import Load
from soak_metrics import logged_ends, unlike_log
from soak_streams import RECORDINGS, STABLE_RECORDINGS, TAKES, Marked
from soak_watch import Moment

GROWTH, NOISE_MIB, HEAP_MIB = 0.05, 8.0, 20.0
"""The most by which the memory of a process may grow between rests: this share, or so much where that is more.

The last is tritonserver's. Bad inputs of up to two megabytes come and go in its heap: 76 to 93 MiB in 7,600 of them.
"""
CROWDED_MIB = 4
"""The most by which regions may grow between rests: one keeps the size of its most crowded moment, come when it may."""
HEALED, SETTLED = 2, 3
"""Rests: after the kills, and when what they brought anew has been warm for a while."""
MOST_SHOWN = 20


@dataclass
class Findings:
    """All that a soak has seen.

    Attributes:
        moments: the rests: before the load, and after each of its segments.
        encoded: events of the reference stage's cache, after every marked request alone.
        lines: the request log.
        log: the whole log of server and launcher.
        code: the launcher's exit code.
        left_behind: files in ``/dev/shm`` after the stop.
    """

    load: Load
    kills: Kills
    moments: list[Moment]
    encoded: dict[str, int]
    lines: list[dict[str, Any]]
    log: str
    code: int
    left_behind: int

    @property
    def settled(self) -> Moment:
        """From here on no process is new or cold."""
        return self.moments[SETTLED]


def print_tables(found: Findings) -> None:
    _print_sizes(found)
    for name, number in sorted(found.load.tally.counts.items()):
        print(f"{number:6d}  {name}")
    print()
    _print_ends(found)
    if found.kills.made:
        print_kills(found.kills.made)
    for kind, number in found.load.tally.kinds.most_common(MOST_SHOWN):
        print(f"  {number} faults: {kind[:300]}")
    for fault in found.load.tally.faults[:MOST_SHOWN]:
        print(f"  fault: {fault[:600]}")
    print()


def _print_sizes(found: Findings) -> None:
    moments, settled, end = found.moments, found.settled, found.moments[-1]
    print("\n| streams | " + " | ".join(str(moment.streams) for moment in moments) + " | KiB a stream |")
    print("|---|" + "---|" * (len(moments) + 1))
    for name in moments[0].processes:
        cells = []
        for moment in moments:
            one = moment.processes.get(name)
            cells.append("gone" if one is None else f"{one.private:.1f} + {one.shared:.1f} {one.threads} {one.files}")
        slope = float("nan")
        if name in end.processes and name in settled.processes:
            grown = end.processes[name].private - settled.processes[name].private
            slope = 1024 * grown / (end.streams - settled.streams)
        print(f"| {name} | " + " | ".join(cells) + f" | {slope:.2f} |")
    memory = [moment.shared_memory for moment in moments]
    print("| /dev/shm | " + " | ".join(f"{one.files} files, {one.bytes / 2**20:.1f}" for one in memory) + " | |")
    print(f"Resident MiB (own + shared), threads, open files. Last column: own, from {settled.streams} streams on.\n")


def _print_ends(found: Findings) -> None:
    """How requests to the front door ended, over the whole soak."""
    callers: dict[tuple[str, str], int] = {}
    for one in found.load.tally.seen:
        if one.pipeline == soak_family.chosen.pipelines[0] and not one.is_by_triton:
            callers[one.outcome, one.reason] = callers.get((one.outcome, one.reason), 0) + 1
    logged = logged_ends(found.lines)
    alone = found.moments[0].logged
    print(f"| requests to {soak_family.chosen.pipelines[0]} | callers | log |")
    print("|---|---|---|")
    for how in sorted({*callers, *logged}):
        print(f"| {' '.join(how)} | {callers.get(how, '')} | {logged[how] or ''} |")
    print(
        f"The log has {sum(alone.values())} from before the load as well. How a stream ended that was left or hit, its "
        "caller does not know.\n"
    )


def verdicts(found: Findings) -> Iterator[tuple[bool, str]]:
    """What has to hold, and whether it does."""
    tally, kills = found.load.tally, found.kills
    counts, begun = tally.counts, found.load.begun
    ended = sum(number for name, number in counts.items() if name.startswith(soak_family.chosen.name))
    hits = sum(number for name, number in counts.items() if name.endswith("hit by a kill"))
    yield (
        not tally.faults and ended == begun,
        f"every stream ended once, as it should: {ended} of {begun}, {len(tally.faults)} faults, {hits} hit by kills",
    )
    compared = counts["compared, whole"] + counts["compared, cut off"]
    yield compared > 0 and not counts["unequal"], f"{compared} streams compared, {counts['unequal']} unlike themselves"
    yield from _kills(kills)
    yield from _places(found)
    yield from _counts(found)
    if not kills.made:
        yield from _encodes(found)
    yield from _sizes(found)
    yield found.left_behind == 0, f"/dev/shm after the stop: {found.left_behind} files"
    yield found.code == 0, f"the launcher lived to its stop, and ended with code {found.code}"
    if not kills.made:
        # 15 is the launcher's own.
        bad = re.findall(r"Traceback|Signal \((?!15\))\d+\)|is not healthy|has lost its process", found.log)
        yield not bad, f"the log holds no traceback and no death: {bad or 'yes'}"


def _kills(kills: Kills) -> Iterator[tuple[bool, str]]:
    done = len(kills.made) == kills.number and not kills.faults
    yield done, f"{len(kills.made)} of {kills.number} kills made and healed: {'; '.join(kills.faults) or 'yes'}"


def _places(found: Findings) -> Iterator[tuple[bool, str]]:
    for moment in found.moments:
        lost = [*moment.free, *moment.scrape.busy()]
        yield not lost, f"after {moment.streams} streams every place is free, by trial and by gauges: {lost or 'yes'}"


def _counts(found: Findings) -> Iterator[tuple[bool, str]]:
    unlike = list(unlike_log(found.load.tally.seen, found.lines))
    seen = len(found.load.tally.seen)
    yield not unlike, f"the log tells each of {seen} ends as its caller saw it: {unlike[:3] or 'yes'}"
    # What a process had counted is gone with it.
    first, end = found.moments[HEALED if found.kills.made else 0], found.moments[-1]
    counted, logged = end.scrape.ends() - first.scrape.ends(), end.logged - first.logged
    yield counted == logged and bool(counted), f"metrics count {sum(counted.values())} ends as the log: {dict(counted)}"


def _encodes(found: Findings) -> Iterator[tuple[bool, str]]:
    before, end = found.moments[0].scrape.cache(), found.moments[-1].scrape.cache()
    asked = encodes([*found.load.marked, *found.load.long])
    yield found.encoded["misses"] == asked, f"each of {asked} recordings was encoded once: {found.encoded}"
    more = {event: end[event] - before[event] for event in end}
    yield more["misses"] == 0 and more["hits"] > 0, f"the load encoded nothing again: {more}"


def _sizes(found: Findings) -> Iterator[tuple[bool, str]]:
    settled, end = found.settled, found.moments[-1]
    for name, process in settled.processes.items():
        last = end.processes.get(name)
        is_same = last is not None and last.pid == process.pid
        growth = last.private - process.private if last is not None and is_same else float("inf")
        noise = HEAP_MIB if name == "tritonserver" else NOISE_MIB
        holds = growth <= max(noise, GROWTH * process.private)
        yield holds, f"memory of {name}: {growth:+.1f} MiB" + ("" if is_same else ", another process")
    total = [sum(process.private for process in moment.processes.values()) for moment in (settled, end)]
    yield total[1] <= (1 + GROWTH) * total[0], f"memory in all: {100 * (total[1] / total[0] - 1):+.1f} %"
    memory = (settled.shared_memory, end.shared_memory)
    grown = memory[1].files > memory[0].files or memory[1].bytes > memory[0].bytes + CROWDED_MIB * 2**20
    yield not grown, f"/dev/shm: {memory[0]} after {settled.streams} streams, {memory[1]} at the end"


def encodes(marked: list[Marked]) -> int:
    """Recordings that have to be encoded once: each file in each role."""
    asked = [*STABLE_RECORDINGS.values(), *({"reference": RECORDINGS[take]} for take in TAKES)]
    asked += [options for one in marked for options in one.solo_options]
    return len({(role, one[role]) for one in asked for role in ("reference", "prompt_audio") if role in one})
