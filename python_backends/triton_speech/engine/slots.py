"""Queue and slots: what every engine has in common."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..errors import SpeechError, full, invalid, too_late
from ..families.graph_use import GraphUse
from ..families.protocol import TalkerModel
from ..request import CONTINUES
from .api import EngineOptions, Frame, TalkerRequest
from .waiting import WaitingLine

log = logging.getLogger(__name__)

SCRATCH_SLOT = 0
FAILED = SpeechError("INTERNAL", "the talker failed on this stream; the server's log has it")
NOT_FINITE = SpeechError("INTERNAL", "the talker made NaN or infinite values; the stream was ended")
NOTHING_SAID = SpeechError("INTERNAL", "the talker ended the stream before its first frame; there is no audio")


def slots_needed(options: EngineOptions) -> int:
    """Slots that the talker must have: one for each stream, and scratch."""
    return options.max_num_seqs + 1


@dataclass
class Running:
    """A stream that holds a slot."""

    request: TalkerRequest
    slot: int
    done: int = 0
    """Rows that have run: those of prompt and speech where the engine itself runs them, else those of speech."""
    frames: int = 0


class SlotEngine:
    """Streams wait for a slot, hold it while they run, and give it back. Single-threaded."""

    talker: TalkerModel

    def __init__(self, options: EngineOptions, length: int) -> None:
        self.options = options
        self.length = length
        self._free = list(range(slots_needed(options) - 1, SCRATCH_SLOT, -1))
        self._waiting = WaitingLine()
        self._running: dict[str, Running] = {}
        self._cancelled: set[str] = set()
        self.on_slot: Callable[[str], None] = lambda _: None
        """Told each stream that gets its slot, on the thread that steps."""
        self.graph_uses: Mapping[str, GraphUse] = {}
        """By the kind of step; empty where the engine captures nothing."""

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._running)

    @property
    def waiting(self) -> int:
        """Streams without a slot; may be asked from any thread, as ``running``."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Streams that hold a slot."""
        return len(self._running)

    def add(self, request: TalkerRequest) -> None:
        """Queues a stream.

        Raises:
            SpeechError: UNAVAILABLE when the queue is full, INVALID_ARG when the prompt does not fit.
        """
        if request.prompt.length >= self.length:
            raise invalid(
                "TEXT", f"text and audio prompts take {request.prompt.length} positions, at most {self.length - 1} fit"
            )
        is_full = len(self._waiting) >= self.options.max_waiting + len(self._free)
        if is_full and request.priority < CONTINUES:
            raise full("the talker's queue", self.options.max_waiting)
        self._waiting.add(request)

    def cancel(self, stream: str) -> None:
        """Ends a stream at the next step; its slot is free then. Unknown streams are ignored."""
        self._cancelled.add(stream)

    def _drop_ended(self) -> list[Frame]:
        """The last frames of streams that were cancelled or are past their deadline; they have left queue and slots."""
        cancelled, self._cancelled = self._cancelled, set()
        now = time.monotonic()

        def end_of(request: TalkerRequest) -> Frame | None:
            if request.stream in cancelled:
                return Frame(request.stream, finish="cancelled")
            if request.deadline is not None and now >= request.deadline:
                return Frame(request.stream, error=too_late(request.seconds))
            return None

        running = [(one, frame) for one in self._running.values() if (frame := end_of(one.request))]
        self._stop([one for one, _ in running])
        waiting = self._waiting.remove(lambda request: end_of(request) is not None)
        return [frame for request in waiting if (frame := end_of(request))] + [frame for _, frame in running]

    def _admit(self) -> list[Frame]:
        admitted = []
        while self._waiting and self._free:
            one = Running(self._waiting.take(), self._free.pop())
            self._running[one.request.stream] = one
            self.on_slot(one.request.stream)
            admitted.append(one)
        return self._begin(admitted) if admitted else []

    def _begin(self, streams: list[Running]) -> list[Frame]:
        """Makes streams ready that have just got their slots; returns the ends of those that could not be."""
        try:
            self.talker.write_prompts([(one.slot, one.request.prompt, one.request.sampling) for one in streams])
        except Exception:
            if len(streams) > 1:
                return [frame for one in streams for frame in self._begin([one])]
            log.exception("prompt of stream %s failed", streams[0].request.stream)
            return self._fail(streams)
        failed = []
        for one in streams:
            try:
                self._start(one)
            except Exception:
                log.exception("stream %s could not begin", one.request.stream)
                failed += self._fail([one])
        return failed

    def _start(self, one: Running) -> None:
        """Hands a stream whose prompt is written to what will run it, where that is not this engine itself."""

    def _end_without_frame(self, one: Running) -> list[Frame]:
        """The end of a stream whose last step made no frame; an error where no step has made one."""
        if not one.frames:
            return self._fail([one], NOTHING_SAID)
        self._release(one)
        return [Frame(one.request.stream, finish="stop")]

    def _fail(self, streams: list[Running], error: SpeechError = FAILED) -> list[Frame]:
        self._stop(streams)
        return [Frame(one.request.stream, error=error) for one in streams]

    def _stop(self, streams: Iterable[Running]) -> None:
        """Ends streams before their time."""
        for one in streams:
            self._release(one)

    def _release(self, one: Running) -> None:
        del self._running[one.request.stream]
        self._free.append(one.slot)
