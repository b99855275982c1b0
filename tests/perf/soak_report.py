"""What the soak found: the tables of what was seen, and what has to hold."""

from __future__ import annotations

import re
from collections.abc import Iterator

from soak_load import Tally
from soak_streams import PIPELINES, RECORDINGS, STABLE_RECORDINGS, TAKES, Marked
from soak_watch import Moment

GROWTH = 0.05
"""The most by which memory may grow between the first rest of the load and the last."""


def print_tables(tally: Tally, moments: list[Moment]) -> None:
    print("\n| streams | " + " | ".join(str(moment.streams) for moment in moments) + " | KiB a stream |")
    print("|---|" + "---|" * (len(moments) + 1))
    settled, end = moments[2], moments[-1]
    for name in moments[0].processes:
        cells = []
        for moment in moments:
            if (one := moment.processes.get(name)) is None:
                cells.append("gone")
            else:
                cells.append(f"{one.resident:.1f} ({one.shared:.1f}) {one.threads} {one.files}")
        slope = float("nan")
        if name in end.processes:
            grown = end.processes[name].resident - settled.processes[name].resident
            slope = 1024 * grown / (end.streams - settled.streams)
        print(f"| {name} | " + " | ".join(cells) + f" | {slope:.2f} |")
    memory = [moment.shared_memory for moment in moments]
    print("| /dev/shm | " + " | ".join(f"{one.files} files, {one.bytes / 2**20:.1f}" for one in memory) + " | |")
    print("Resident MiB (shared part), threads, open files. Last column: growth after the second rest of the load.\n")
    for name, number in sorted(tally.counts.items()):
        print(f"{number:6d}  {name}")
    for fault in tally.faults[:20]:
        print(f"  fault: {fault[:600]}")
    print()


def verdicts(
    tally: Tally, marked: list[Marked], moments: list[Moment], log: str, code: int | None, left_behind: int
) -> Iterator[tuple[bool, str]]:
    """What has to hold, and whether it does.

    Args:
        moments: before the load, and at each of its rests.
        code: the server's exit code.
        left_behind: files in /dev/shm after the stop.
    """
    counts = tally.counts
    before, warm, *_, end = moments
    ended = sum(number for name, number in counts.items() if name.startswith(PIPELINES))
    yield (
        not tally.faults and ended == end.streams,
        f"every stream ended once and as it should: {ended} of {end.streams}",
    )
    compared = counts["compared, whole"] + counts["compared, left"]
    yield compared > 0 and not counts["unequal"], f"{compared} streams compared, {counts['unequal']} unlike themselves"
    for moment in moments:
        yield not moment.free, f"every place is free after {moment.streams} streams: {'; '.join(moment.free) or 'yes'}"
    yield before.cache["misses"] == encodes(marked), f"each recording was encoded once: {before.cache}"
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


def encodes(marked: list[Marked]) -> int:
    """Recordings that have to be encoded once: each file in each role."""
    asked = [*STABLE_RECORDINGS.values(), *({"reference": RECORDINGS[take]} for take in TAKES)]
    asked += [options for one in marked for options in one.solo_options]
    return len({(role, one[role]) for one in asked for role in ("reference", "prompt_audio") if role in one})
