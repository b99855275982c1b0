"""Queue and slots: what every engine has in common."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import SpeechError, full, invalid
from ..families.protocol import TalkerModel
from .api import EngineOptions, Frame, TalkerRequest

log = logging.getLogger(__name__)

SCRATCH_SLOT = 0
FAILED = SpeechError("INTERNAL", "the talker failed on this stream; the server's log has it")
NOT_FINITE = SpeechError("INTERNAL", "the talker made NaN or infinite values; the stream was ended")


def slots_needed(options: EngineOptions) -> int:
    """Slots that the talker must have: one for each stream, and scratch."""
    return options.max_num_seqs + 1


@dataclass
class Running:
    """A stream that holds a slot."""

    request: TalkerRequest
    slot: int
    done: int = 0
    """Positions of the prompt and of speech whose rows have run, where the engine itself runs them."""
    frames: int = 0


class SlotEngine:
    """Streams wait in order, hold a slot while they run, and give it back. Single-threaded."""

    talker: TalkerModel

    def __init__(self, options: EngineOptions, length: int) -> None:
        self.options = options
        self.length = length
        self._free = list(range(slots_needed(options) - 1, SCRATCH_SLOT, -1))
        self._waiting: deque[TalkerRequest] = deque()
        self._running: dict[str, Running] = {}
        self._cancelled: set[str] = set()

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._running)

    def add(self, request: TalkerRequest) -> None:
        """Queues a stream.

        Raises:
            SpeechError: UNAVAILABLE when the queue is full, INVALID_ARG when the prompt does not fit.
        """
        if request.prompt.length >= self.length:
            raise invalid(
                "TEXT", f"text and audio prompts take {request.prompt.length} positions, at most {self.length - 1} fit"
            )
        if len(self._waiting) >= self.options.max_waiting + len(self._free):
            raise full("the talker's queue", self.options.max_waiting)
        self._waiting.append(request)

    def cancel(self, stream: str) -> None:
        """Ends a stream at the next step; its slot is free then. Unknown streams are ignored."""
        self._cancelled.add(stream)

    def _drop_cancelled(self) -> list[Frame]:
        if not self._cancelled:
            return []
        cancelled, self._cancelled = self._cancelled, set()
        ended = [request.stream for request in self._waiting if request.stream in cancelled]
        self._waiting = deque(request for request in self._waiting if request.stream not in cancelled)
        running = [one for stream, one in self._running.items() if stream in cancelled]
        self._stop(running)
        return [Frame(stream, finish="cancelled") for stream in [*ended, *(one.request.stream for one in running)]]

    def _admit(self) -> list[Frame]:
        admitted = []
        while self._waiting and self._free:
            one = Running(self._waiting.popleft(), self._free.pop())
            self._running[one.request.stream] = one
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
