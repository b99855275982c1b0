"""The load of the kills: streams without end, and what is held in a stage at the moment of its kill."""

from __future__ import annotations

import asyncio
import io
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import soundfile
from launched import OPTIONS
from soak_hearing import play
from soak_streams import PIPELINES, recording
from tritonclient.grpc import service_pb2_grpc

from triton_speech_client import AsyncSpeechClient
from triton_speech_client.errors import SpeechClientError

STREAM_SECONDS = 4.0
RETRY_SECONDS = 0.2
HELD = 4
"""Requests of each pipeline that are sent into a stage that works too quickly to be hit."""
HOLD_SECONDS: Mapping[str, float] = {"frontend": 0.1, "reference": 0.3, "voices": 0.3}
"""From then to the kill; a stage needs longer for what it is given."""
LONG_TEXT = "word " * 9_990
"""The frontend works on it for a tenth of a second."""
LONG_RECORDING_SECONDS = 29

Stub = service_pb2_grpc.GRPCInferenceServiceStub


@dataclass(eq=False)
class Stream:
    """One stream, or one call of ``voices``; times as ``time.monotonic``. ``fault``: what its caller heard."""

    model: str
    began: float
    ended: float | None = None
    fault: str = ""


class Load:
    """Each worker and each held request is on a connection of its own. ``running``: what has begun and not ended."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.running: set[Stream] = set()
        self._numbers = itertools.count()
        self._held: set[asyncio.Task[Any]] = set()

    async def work(self, pipeline: str) -> None:
        while True:
            async with grpc.aio.insecure_channel(self.url, options=OPTIONS) as channel:
                number = next(self._numbers)
                options = {"reference": recording(number % 50)} if number % 4 == 0 else {}
                await self.one(Stub(channel), pipeline, max_seconds=STREAM_SECONDS, **options)
            await asyncio.sleep(RETRY_SECONDS)

    async def one(self, stub: Any, pipeline: str, **options: Any) -> Stream:
        """One stream, with other options than those of the load."""
        usual = {"text": "word " * 40, "seed": next(self._numbers), "chunk_schedule": [1], "inference_steps": 50}
        stream = self._begin(pipeline)
        try:
            ending = await play(stub, pipeline, {**usual, **options})
            # A connection that was ended tells as well as a text does.
            stream.fault = str(ending.error or ending.fault())
        finally:
            self._end(stream)
        return stream

    async def hold(self, model: str) -> None:
        """Gives the model much to do, where its usual work is too short to be hit. Returns when it is at it."""
        kind = model.removeprefix(f"{PIPELINES[0]}_")
        if kind == "voices":
            # One, for it does one thing at a time: each more that waits for it hears a second later.
            self._keep(self._add("held"))
        elif kind == "frontend":
            # An ensemble speaks no long texts; its requests wait behind those of the front door.
            for pipeline, options in (*HELD * [(PIPELINES[0], {"text": LONG_TEXT})], *HELD * [(PIPELINES[1], {})]):
                self._keep(self._hold_one(pipeline, options))
        elif kind == "reference":
            for pipeline in HELD * PIPELINES:
                self._keep(self._hold_one(pipeline, {"reference": long_recording(next(self._numbers))}))
        await asyncio.sleep(HOLD_SECONDS.get(kind, 0.0))

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    async def _hold_one(self, pipeline: str, options: Mapping[str, Any]) -> None:
        async with grpc.aio.insecure_channel(self.url, options=OPTIONS) as channel:
            await self.one(Stub(channel), pipeline, max_seconds=0.2, **options)

    async def _add(self, name: str) -> None:
        data = long_recording(next(self._numbers))
        stream = self._begin("voices")
        try:
            async with AsyncSpeechClient(self.url, retries=0) as client:
                await client.add_voice(name, reference=data)
        except SpeechClientError as error:
            stream.fault = str(error)
        finally:
            self._end(stream)

    def _begin(self, model: str) -> Stream:
        stream = Stream(model, time.monotonic())
        self.running.add(stream)
        return stream

    def _end(self, stream: Stream) -> None:
        stream.ended = time.monotonic()
        self.running.discard(stream)


def long_recording(number: int) -> bytes:
    """A WAV file of noise, which no stage has heard before."""
    samples = np.random.default_rng(number).uniform(-0.5, 0.5, LONG_RECORDING_SECONDS * 16_000)
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV")
    return file.getvalue()
