"""The thread that owns the model: requests go in from any thread, frames come out through a callback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..errors import SpeechError
from ..families.graph_use import GraphUse
from .api import Frame, TalkerRequest

log = logging.getLogger(__name__)

ENGINE_FAILED = SpeechError("INTERNAL", "the talker's engine failed; the server's log has it")


class Engine(Protocol):
    """What every engine offers; single-threaded, but for the numbers of streams."""

    on_slot: Callable[[str], None]
    graph_uses: Mapping[str, GraphUse]

    @property
    def is_idle(self) -> bool: ...

    @property
    def waiting(self) -> int: ...

    @property
    def running(self) -> int: ...

    def add(self, request: TalkerRequest) -> None: ...

    def cancel(self, stream: str) -> None: ...

    def step(self) -> list[Frame]: ...


@dataclass
class StepCount:
    """Steps that made frames, the frames of all of them, and those of the latest one."""

    steps: int = 0
    frames: int = 0
    latest: int = 0


class EngineThread:
    """Steps an engine for as long as it has work.

    Args:
        engine: touched by this thread alone.
        on_frames: called on the thread with the frames of each step; must not block.
        prepare: called on the thread before anything else.
    """

    def __init__(
        self, engine: Engine, on_frames: Callable[[list[Frame]], None], prepare: Callable[[], None] = lambda: None
    ) -> None:
        self._engine = engine
        self._prepare = prepare
        self._on_frames = on_frames
        self._inbox: list[TalkerRequest] = []
        self._cancels: list[str] = []
        self._calls: list[Callable[[], None]] = []
        self._live: set[str] = set()
        self._wake = threading.Condition()
        self._closed = False
        self.counted = StepCount()
        self._thread = threading.Thread(target=self._run, name="talker-engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Streams that have no slot yet; may be asked from any thread."""
        return len(self._inbox) + self._engine.waiting

    @property
    def running(self) -> int:
        """Streams that hold a slot."""
        return self._engine.running

    @property
    def batch(self) -> int:
        """Streams in the latest step; 0 while nothing runs."""
        return self.counted.latest if self._engine.running else 0

    def submit(self, request: TalkerRequest) -> None:
        """Queues a stream; whether it is taken is told by its first frame."""
        with self._wake:
            self._inbox.append(request)
            self._wake.notify()

    def cancel(self, stream: str) -> None:
        with self._wake:
            self._cancels.append(stream)
            self._wake.notify()

    def call(self, work: Callable[[], None]) -> None:
        """Has the thread do ``work`` before its next step; it must not block."""
        with self._wake:
            self._calls.append(work)
            self._wake.notify()

    def close(self, timeout: float = 10.0) -> None:
        """Stops after the step in hand."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        self._prepare()
        while True:
            with self._wake:
                self._wake.wait_for(self._has_work)
                if self._closed:
                    return
                inbox, self._inbox = self._inbox, []
                cancels, self._cancels = self._cancels, []
                calls, self._calls = self._calls, []
            for work in calls:
                work()
            self._live.update(request.stream for request in inbox)
            try:
                frames = self._turn(inbox, cancels)
            except Exception:
                log.exception("the engine failed; its %d streams are ended", len(self._live))
                frames = [Frame(stream, error=ENGINE_FAILED) for stream in self._live]
                for stream in self._live:
                    self._engine.cancel(stream)
            self._live.difference_update(frame.stream for frame in frames if frame.is_last)
            if frames:
                self._on_frames(frames)

    def _has_work(self) -> bool:
        return bool(self._closed or self._inbox or self._cancels or self._calls or not self._engine.is_idle)

    def _turn(self, inbox: list[TalkerRequest], cancels: list[str]) -> list[Frame]:
        refused = []
        for request in inbox:
            try:
                self._engine.add(request)
            except SpeechError as error:
                refused.append(Frame(request.stream, error=error))
        for stream in cancels:
            self._engine.cancel(stream)
        frames = self._engine.step()
        self._count(sum(frame.patch is not None for frame in frames))
        return refused + frames

    def _count(self, made: int) -> None:
        if made:
            self.counted.steps += 1
            self.counted.frames += made
            self.counted.latest = made
