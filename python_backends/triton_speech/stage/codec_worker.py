"""The thread that owns the codec: chunks of many streams in, batches through the model, samples out."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import SpeechError, invalid
from ..families.protocol import Codec, Decoding
from ..streaming.batcher import PIECES, Batcher, Round, Row
from ..streaming.silence import SilentTail
from ..streaming.slots import Lease, SlotTable
from ..streaming.window import Act, CoalescingWindow, Decision
from .failure import failure_in

log = logging.getLogger(__name__)

Samples = NDArray[np.float32]

NOT_FINITE = SpeechError("INTERNAL", "the talker made NaN or infinite latents; the stream was ended")
NOT_FINITE_AUDIO = SpeechError("INTERNAL", "the codec made NaN or infinite samples; the stream was ended")
FAILED = SpeechError("INTERNAL", "the codec failed on this stream; the server's log has it")
RELEASED = SpeechError("CANCELLED", "the stream was released before this chunk was decoded")
STOPPING = SpeechError("UNAVAILABLE", "the server is stopping")
NOT_KNOWN = invalid("STREAM_ID", "is not known to the codec, or its stream was silent for too long")


@dataclass(frozen=True)
class Chunk:
    """A chunk of a stream, and where its samples (N,) fp32 or its error go: ``answer`` is called once, must not block.

    Attributes:
        patches: (T, P, D) fp32; T = 0 for one that only tells the end.
        skipped: leading patches that only prime the decoder.
        finish: not empty for the stream's last chunk; one that was ``cancelled`` or tells a failure
            ends the stream at once.
    """

    stream: str
    index: int
    patches: torch.Tensor
    skipped: int
    finish: str
    answer: Callable[[Samples | SpeechError], None]


@dataclass(frozen=True)
class Release:
    """A stream that is over for its owner; ``done`` is called when its slot is free."""

    stream: str
    done: Callable[[], None]


@dataclass(eq=False)
class _Work:
    """A chunk that was taken in. ``fault`` is what its turn will bring instead of samples."""

    chunk: Chunk
    lease: Lease
    fault: SpeechError | None
    samples: list[Samples] = field(default_factory=list)
    is_answered: bool = False

    def answer(self, result: Samples | SpeechError) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.lease.waiting -= 1
            self.chunk.answer(result)


@dataclass
class BatchCount:
    """Batches that were launched, the streams of all of them, and those of the latest one."""

    batches: int = 0
    streams: int = 0
    latest: int = 0

    def add(self, streams: int) -> None:
        self.batches += 1
        self.streams += streams
        self.latest = streams


class CodecWorker:
    """Decodes batches across streams for as long as there is something to decode.

    A stream that goes wrong (an index out of order, values that are not finite, a failure of the model) ends alone:
    its chunks are answered with the error, its slot is free, and its neighbours in the batch hear nothing of it.

    Args:
        codec, slots: touched by this thread alone.
        window: how batches wait for company, and how large they are.
        pieces: patches of each stream that one batch may take.
        batches_in_flight: batches on the device at once. With 2 the device does not wait for this thread, and a stream
            that begins waits for one batch more.
        max_silence: samples of silence that a stream may end with; None for any number.
        prepare: called on the thread before anything else.
    """

    def __init__(
        self,
        codec: Codec,
        slots: SlotTable,
        window: CoalescingWindow,
        *,
        pieces: Sequence[int] = PIECES,
        batches_in_flight: int = 1,
        max_silence: int | None = None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._codec = codec
        self._prepare = prepare
        self._slots = slots
        self._batcher: Batcher[_Work] = Batcher(window, pieces)
        self._batches_in_flight = batches_in_flight
        self._max_silence = max_silence
        self._running: deque[tuple[Round[_Work], Decoding | None]] = deque()
        self._inbox: queue.SimpleQueue[Chunk | Release | None] = queue.SimpleQueue()
        self.counted = BatchCount()
        self._thread = threading.Thread(target=self._run, name="codec-worker", daemon=True)
        self._thread.start()

    @property
    def streams(self) -> int:
        """Streams that hold a slot; may be asked from any thread, as ``waiting`` and ``batch``."""
        return len(self._slots)

    @property
    def waiting(self) -> int:
        """Streams that wait for a batch."""
        return len(self._batcher)

    @property
    def batch(self) -> int:
        """Streams in the latest batch; 0 while none holds a slot."""
        return self.counted.latest if len(self._slots) else 0

    def submit(self, message: Chunk | Release) -> None:
        """Queues a chunk, or a stream's end; the chunks of a stream in their order."""
        self._inbox.put(message)

    def close(self, timeout: float = 10.0) -> None:
        """Stops after the batches in hand; chunks that were not decoded are answered as UNAVAILABLE."""
        self._inbox.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        self._prepare()
        decision = Decision(Act.WAIT)
        while self._receive(decision):
            try:
                decision = self._turn()
            except Exception:
                log.exception("the codec failed; its %d streams are ended", len(self._slots))
                self._end_all(FAILED)
        while self._running:
            self._retire()
        self._end_all(STOPPING)
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Chunk):
                message.answer(STOPPING)
            elif message is not None:
                message.done()

    def _turn(self) -> Decision:
        decision = self._batcher.decide(time.monotonic(), live=len(self._slots), running=len(self._running))
        if decision.act is Act.RETIRE:
            self._retire()
        elif decision.act is Act.DISPATCH:
            self._launch(self._batcher.take())
        return decision

    def _receive(self, decision: Decision) -> bool:
        """Takes in all that has come, after waiting for it where that was decided. False when it is time to stop."""
        wait = decision.act is Act.WAIT
        while True:
            try:
                message = self._inbox.get(block=wait, timeout=decision.seconds)
            except queue.Empty:
                return True
            if message is None:
                return False
            if isinstance(message, Release):
                self._end(message.stream, RELEASED)
                message.done()
            else:
                self._admit(message)
            wait = False

    def _admit(self, chunk: Chunk) -> None:
        if chunk.finish == "cancelled":
            # Nobody hears what is not decoded yet.
            self._end(chunk.stream, RELEASED)
            chunk.answer(np.zeros(0, dtype=np.float32))
            return
        if failure := failure_in(chunk.finish):
            self._end(chunk.stream, failure)
            chunk.answer(failure)
            return
        try:
            lease = self._lease(chunk)
        except SpeechError as error:
            chunk.answer(error)
            return
        except Exception:
            log.exception("stream %s could not begin", chunk.stream)
            self._slots.release(chunk.stream)
            chunk.answer(FAILED)
            return
        lease.waiting += 1
        fault = None if chunk.patches.isfinite().all() else NOT_FINITE
        work = _Work(chunk, lease, fault)
        self._batcher.add(
            chunk.stream,
            work,
            patches=0 if fault else len(chunk.patches),
            is_first=chunk.index == 0,
            now=lease.last_used,
        )

    def _lease(self, chunk: Chunk) -> Lease:
        now = time.monotonic()
        lease = self._slots.find(chunk.stream)
        if lease is None:
            if chunk.index != 0:
                raise NOT_KNOWN
            lease = self._slots.lease(chunk.stream, now)
            lease.tail = None if self._max_silence is None else SilentTail(self._max_silence)
            self._codec.reset(lease.slot)
        if chunk.index != lease.next_chunk:
            error = invalid("CHUNK_INDEX", f"is {chunk.index}, chunk {lease.next_chunk} was due")
            self._end(chunk.stream, error)
            raise error
        lease.next_chunk += 1
        lease.last_used = now
        return lease

    def _launch(self, round_: Round[_Work]) -> None:
        decoding = None
        if round_.rows:
            try:
                patches = torch.stack([row.chunk.item.chunk.patches[row.start : row.stop] for row in round_.rows])
                decoding = self._codec.launch(patches, [row.chunk.item.lease.slot for row in round_.rows])
                self.counted.add(len(round_.rows))
            except Exception:
                self._fail(round_)
        self._running.append((round_, decoding))
        while len(self._running) >= self._batches_in_flight:
            self._retire()

    def _retire(self) -> None:
        """Collects the oldest batch and answers the chunks that end with it."""
        round_, decoding = self._running.popleft()
        if decoding is not None:
            try:
                audio = decoding.result()
                finite = audio.isfinite().all(dim=1).tolist()
            except Exception:
                self._fail(round_)
            else:
                for row, samples, is_finite in zip(round_.rows, audio.numpy(), finite, strict=True):
                    self._collect(row, samples if is_finite else None)
        for row in round_.ends:
            self._collect(row, np.zeros(0, dtype=np.float32))

    def _collect(self, row: Row[_Work], samples: Samples | None) -> None:
        work = row.chunk.item
        stream = work.chunk.stream
        if self._slots.find(stream) is not work.lease:
            work.answer(RELEASED)
            return
        if work.fault is not None or samples is None:
            error = work.fault or NOT_FINITE_AUDIO
            work.answer(error)
            self._end(stream, error)
            return
        work.samples.append(samples)
        if not row.ends_chunk:
            return
        whole = np.concatenate(work.samples) if len(work.samples) > 1 else work.samples[0]
        work.lease.last_used = time.monotonic()
        heard = whole[work.chunk.skipped * self._codec.samples_per_patch :]
        if work.lease.tail is not None:
            heard = work.lease.tail.push(heard)
        work.answer(heard)
        if work.chunk.finish:
            self._end(stream, NOT_KNOWN)

    def _fail(self, round_: Round[_Work]) -> None:
        """The model failed: the streams of this batch are ended, with the cause in the log alone."""
        log.exception("a batch of %d streams failed; they are ended", len(round_.rows))
        for row in round_.rows:
            work = row.chunk.item
            work.answer(FAILED)
            if self._slots.find(work.chunk.stream) is work.lease:
                self._end(work.chunk.stream, FAILED)

    def _end(self, stream: str, error: SpeechError) -> None:
        """Frees a stream's slot, and answers its chunks that were not decoded."""
        for work in self._batcher.drop(stream):
            work.answer(error)
        self._slots.release(stream)

    def _end_all(self, error: SpeechError) -> None:
        for round_, _ in self._running:
            for row in (*round_.rows, *round_.ends):
                row.chunk.item.answer(error)
        self._running.clear()
        for stream in self._slots.streams():
            self._end(stream, error)
