"""The soak's load: callers that each send one stream after the other, and the judgement of every stream."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import soak_family
import soak_refusals
from launched import OPTIONS
from soak_hearing import Ending, Manner, hear, play, speech_message
from soak_kills import Kills
from soak_streams import (
    RESTLESS,
    UNKNOWN_VOICE,
    Marked,
    random_manner,
    random_options,
    random_schedule,
    shown,
)
from soak_tally import Seen, Tally
from tritonclient.grpc import service_pb2_grpc

from triton_speech.errors import SpeechError
from triton_speech.stage.catalogue import how_it_failed
from triton_speech_client.errors import DeadlineExceeded

CANCELS, SLOW, MARKED, REFUSED, LONG, LATE, HIGH = 0.2, 0.05, 0.7, 0.05, 0.03, 0.06, 0.2
SHORTEST_DEADLINE, LONGEST_DEADLINE = 0.02, 3.0
RETRY_SECONDS = 0.5
"""After a stream that was hit by a kill."""

Stub = service_pb2_grpc.GRPCInferenceServiceStub


@dataclass
class Load:
    """Streams on connections of their callers' own. ``marked`` holds short requests, ``long`` long ones."""

    url: str
    marked: list[Marked]
    long: list[Marked]
    source: random.Random
    kills: Kills
    tally: Tally = field(default_factory=Tally)
    begun: int = 0

    async def run(self, is_over: Callable[[], bool], callers: int) -> None:
        async def call() -> None:
            async with grpc.aio.insecure_channel(self.url, options=OPTIONS) as channel:
                stub = Stub(channel)
                while not is_over():
                    self.begun += 1
                    if await self._one(stub):
                        await asyncio.sleep(RETRY_SECONDS)

        await asyncio.gather(*(call() for _ in range(callers)))

    async def run_alone(self, stub: Stub) -> None:
        """Every marked request, with nothing else on the server."""
        for number, marked in enumerate([*self.marked, *self.long]):
            pipeline = marked.pipelines[number % len(marked.pipelines)]
            for options in marked.solo_options:
                ending = await play(stub, pipeline, options)
                if fault := ending.fault() or ending.error:
                    raise RuntimeError(f"alone: {shown(options)}: {fault}")
                marked.alone.append(ending.audio())

    async def refuse_alone(self, stub: Stub) -> None:
        """Every bad input, with nothing else on the server."""
        for pipeline in soak_family.chosen.pipelines:
            for row in soak_refusals.rows_of(pipeline):
                self.begun += 1
                await self._refuse(stub, pipeline, row)

    async def _one(self, stub: Stub) -> bool:
        """One stream; whether a kill hit it."""
        source = self.source
        pipeline = source.choice(soak_family.chosen.pipelines)
        if source.random() < REFUSED:
            return await self._refuse(stub, pipeline, source.choice(soak_refusals.rows_of(pipeline)))
        is_long = source.random() < LONG
        known = source.choice(self.long if is_long else self.marked)
        marked = known if source.random() < MARKED else None
        options = known.options if marked else random_options(source, source.randrange(7 * 7), is_long=is_long)
        pipeline = pipeline if not is_long else soak_family.chosen.pipelines[0]
        extra: dict[str, Any] = {"chunk_schedule": random_schedule(source)}
        if source.random() < LATE:
            extra["deadline"] = round(source.uniform(SHORTEST_DEADLINE, LONGEST_DEADLINE), 3)
        if source.random() < HIGH:
            extra["priority"] = 1
        options = {**options, **extra}
        manner = random_manner(source, CANCELS / (1 - REFUSED), SLOW)
        request_id = uuid.uuid4().hex
        ending = await play(stub, pipeline, options, manner, request_id)
        self.tally.counts["long texts"] += is_long
        self.tally.counts["slow readers"] += manner.pause > 0
        self.tally.counts["high priorities"] += "priority" in extra
        return self._judge(pipeline, options, manner, ending, marked, request_id)

    async def _refuse(self, stub: Stub, pipeline: str, row: soak_refusals.Row) -> bool:
        request_id = uuid.uuid4().hex
        ending = await hear(stub, speech_message(pipeline, row.tensors(), request_id))
        if self._is_hit(pipeline, ending, request_id):
            return True
        if fault := soak_refusals.fault(row, ending):
            self.tally.fault(f"{pipeline}: a bad input was not refused: {row.name}: {fault}")
        is_by_triton = soak_refusals.is_by_triton(row, ending)
        self._count(pipeline, "refused", ending, request_id, how=_failure(ending), is_by_triton=is_by_triton)
        return False

    def _judge(
        self,
        pipeline: str,
        options: Mapping[str, Any],
        manner: Manner,
        ending: Ending,
        marked: Marked | None,
        request_id: str,
    ) -> bool:
        told = f"{pipeline} {shown(options)} {manner}"
        is_hit = False
        if fault := ending.fault():
            self.tally.fault(f"{told}: {fault}")
            self._count(pipeline, "gone wrong", ending, request_id, how=("hit", ""))
        elif ending.error is not None:
            if isinstance(ending.error, DeadlineExceeded) and "deadline" in options:
                self._count(pipeline, "deadline passed", ending, request_id, how=_failure(ending))
            elif options.get("voice") in RESTLESS and UNKNOWN_VOICE in str(ending.error):
                self._count(pipeline, "voice was removed", ending, request_id, how=_failure(ending))
            elif not (is_hit := self._is_hit(pipeline, ending, request_id)):
                self._unexplained(pipeline, told, ending, request_id)
        elif ending.left:
            self._count(pipeline, f"left {_phase(manner, ending)}", ending, request_id, how=("left", ""))
        else:
            self._count(pipeline, "whole", ending, request_id, how=("ok", ending.reason))
        if marked is not None and ending.samples:
            self._compare(told, ending, marked)
        return is_hit

    def _is_hit(self, pipeline: str, ending: Ending, request_id: str) -> bool:
        """Whether a kill explains how it ended."""
        if ending.fault() or ending.error is None or not self.kills.explain(ending):
            return False
        self._count(pipeline, "hit by a kill", ending, request_id, how=("hit", ""))
        return True

    def _unexplained(self, pipeline: str, told: str, ending: Ending, request_id: str) -> None:
        since = [f"{ending.ended - kill.at:.2f} s after the kill of {kill.stage}" for kill in self.kills.made[-1:]]
        seconds = f"began {ending.ended - ending.began:.2f} s before"
        self.tally.fault(f"{told}: unexplained, {seconds}, {since}: {ending.error!r}", f"{pipeline}: {ending.error!r}")
        self._count(pipeline, "gone wrong", ending, request_id, how=("hit", ""))

    def _compare(self, told: str, ending: Ending, marked: Marked) -> None:
        heard = ending.audio()
        is_whole = ending.error is None and not ending.left
        self.tally.counts["compared, whole" if is_whole else "compared, cut off"] += 1
        self.tally.counts["compared, voice replaced"] += len(marked.alone) > 1
        self.tally.counts["compared, long"] += marked.is_long
        wanted = [alone if is_whole else alone[: len(heard)] for alone in marked.alone]
        if not any(heard.tobytes() == samples.tobytes() for samples in wanted):
            self.tally.counts["unequal"] += 1
            same = [np.abs(heard - samples).max() if len(heard) == len(samples) else "length" for samples in wanted]
            self.tally.fault(f"{told}: not what it is alone: {len(heard)} samples, differences {same}")

    def _count(
        self,
        pipeline: str,
        what: str,
        ending: Ending,
        request_id: str,
        *,
        how: tuple[str, str],
        is_by_triton: bool = False,
    ) -> None:
        self.tally.counts[f"{pipeline}: {what}"] += 1
        self.tally.seen.append(Seen(request_id, pipeline, *how, len(ending.samples), is_by_triton))


def _failure(ending: Ending) -> tuple[str, str]:
    """Outcome and reason of what the server told the caller."""
    return how_it_failed(SpeechError.from_text(ending.errors[0])) if ending.errors else ("hit", "")


def _phase(manner: Manner, ending: Ending) -> str:
    if not ending.samples:
        return "at once" if manner.leaves_after_seconds == 0 else "before a chunk"
    return "between chunks" if manner.lingers or manner.leaves_after_chunks is None else "at a chunk"
