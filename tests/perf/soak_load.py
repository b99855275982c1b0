"""The soak's load: callers that each send one stream after the other, and the judgement of every stream."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from soak_streams import (
    BAD,
    PIPELINES,
    RECORDINGS,
    RESTLESS,
    TAKES,
    UNKNOWN_VOICE,
    Ending,
    Manner,
    Marked,
    play,
    random_manner,
    random_options,
    random_schedule,
    random_text,
)
from soak_watch import Stub

from triton_speech_client import AsyncSpeechClient

CANCELS, SLOW, MARKED, REFUSED = 0.2, 0.05, 0.7, 0.03


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
async def restless_voices(url: str, source: random.Random, tally: Tally) -> AsyncIterator[None]:
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
