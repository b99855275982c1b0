"""Continuous batching in one process: slots, chunked prefill, one batched decode step for all streams."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import SpeechError, full
from ..families.protocol import TalkerModel
from .api import EngineOptions, FinishReason, Frame, TalkerRequest
from .kv_cache import SlotKVCache

log = logging.getLogger(__name__)

SCRATCH_SLOT = 0
FAILED = SpeechError("INTERNAL", "the talker failed on this stream; the server's log has it")
NOT_FINITE = SpeechError("INTERNAL", "the talker made NaN or infinite values; the stream was ended")


@dataclass
class _Running:
    request: TalkerRequest
    slot: int
    done: int = 0
    """Positions whose rows have run."""
    frames: int = 0

    @property
    def prefill_left(self) -> int:
        """The prompt's last row makes the first frame, so it runs as a decode row."""
        return max(self.request.prompt.length - 1 - self.done, 0)


class TorchEngine:
    """Drives a talker. Single-threaded: ``EngineThread`` gives it a thread.

    Args:
        talker: the model with its state buffers; its slots must be ``slots_needed(options)``.
        options: limits.
    """

    def __init__(self, talker: TalkerModel, options: EngineOptions) -> None:
        self.talker = talker
        self.options = options
        self.cache = SlotKVCache(
            talker.kv_shape,
            slots=slots_needed(options),
            length=talker.length,
            dtype=talker.dtype,
            device=talker.device,
        )
        self._free = list(range(slots_needed(options) - 1, SCRATCH_SLOT, -1))
        self._waiting: deque[TalkerRequest] = deque()
        self._running: dict[str, _Running] = {}
        self._cancelled: set[str] = set()

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._running)

    def check(self, request: TalkerRequest) -> None:
        """Raises SpeechError where a request cannot run at all."""
        if request.prompt.length >= self.talker.length:
            raise SpeechError(
                "INVALID_ARG",
                f"TEXT: text and audio prompts take {request.prompt.length} positions, "
                f"this talker has {self.talker.length}",
            )

    def add(self, request: TalkerRequest) -> None:
        """Queues a stream.

        Raises:
            SpeechError: UNAVAILABLE when the queue is full, INVALID_ARG when the prompt does not fit.
        """
        self.check(request)
        if len(self._waiting) >= self.options.max_waiting + len(self._free):
            raise full("the talker's queue", self.options.max_waiting)
        self._waiting.append(request)

    def cancel(self, stream: str) -> None:
        """Ends a stream at the next step; its slot is free then. Unknown streams are ignored."""
        self._cancelled.add(stream)

    @torch.inference_mode()
    def step(self) -> list[Frame]:
        """Admits, runs prompts within the budget, then one decode step for all streams that are ready."""
        frames = self._drop_cancelled()
        frames += self._admit()
        frames += self._prefill()
        by_key: dict[Hashable, list[_Running]] = {}
        for one in self._running.values():
            if not one.prefill_left:
                by_key.setdefault(one.request.sampling.batch_key, []).append(one)
        for key, group in by_key.items():
            try:
                frames += self._decode(group, key)
            except Exception:
                log.exception("decode step of %d streams failed", len(group))
                frames += self._fail(group)
        return frames

    def _drop_cancelled(self) -> list[Frame]:
        if not self._cancelled:
            return []
        cancelled, self._cancelled = self._cancelled, set()
        ended = [request.stream for request in self._waiting if request.stream in cancelled]
        self._waiting = deque(request for request in self._waiting if request.stream not in cancelled)
        for stream in cancelled & self._running.keys():
            self._release(self._running[stream])
            ended.append(stream)
        return [Frame(stream, finish="cancelled") for stream in ended]

    def _admit(self) -> list[Frame]:
        failed = []
        while self._waiting and self._free:
            request = self._waiting.popleft()
            one = _Running(request, self._free.pop())
            self._running[request.stream] = one
            try:
                self.talker.write_prompt(one.slot, request.prompt, request.sampling)
            except Exception:
                log.exception("prompt of stream %s failed", request.stream)
                failed += self._fail([one])
        return failed

    def _prefill(self) -> list[Frame]:
        budget = self.options.prefill_budget
        failed = []
        for one in list(self._running.values()):
            while one.prefill_left and budget > 0:
                count = min(one.prefill_left, self.options.prefill_chunk)
                try:
                    self._run_chunk(one, count)
                except Exception:
                    log.exception("prefill of stream %s failed", one.request.stream)
                    failed += self._fail([one])
                    break
                budget -= count
        return failed

    def _run_chunk(self, one: _Running, count: int) -> None:
        start, stop = one.done, one.done + count
        positions = torch.arange(start, stop, device=self.talker.device)
        slots = torch.full_like(positions, one.slot)
        self.talker.hidden(slots, positions, self.cache.prefill(one.slot, start, stop))
        one.done = stop

    def _decode(self, group: list[_Running], key: Hashable) -> list[Frame]:
        rows = [(one.slot, one.done) for one in group]
        longest = max(position for _, position in rows)
        if self.options.deterministic:
            rows += [(SCRATCH_SLOT, 0)] * (self.options.max_num_seqs - len(rows))
            longest = self.cache.length - 1
        slots, positions = self._columns(rows)
        attend = self.cache.decode(slots, positions, longest)
        state, residual = self.talker.hidden(slots, positions, attend)
        patches, stops = self.talker.emit(slots, positions, state, residual, key)
        # One copy to the host for all streams of the step.
        host = torch.cat((patches.flatten(1).float(), stops.unsqueeze(1).float()), dim=1).cpu()
        frames = []
        for row, one in enumerate(group):
            if not host[row].isfinite().all():
                frames += self._fail([one], NOT_FINITE)
                continue
            one.done += 1
            one.frames += 1
            finish = self._finish(one, stops=bool(host[row, -1]))
            frames.append(Frame(one.request.stream, host[row, :-1].view(patches.shape[1:]).clone(), finish))
            if finish:
                self._release(one)
        return frames

    def _columns(self, rows: Iterable[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        both = torch.tensor(list(rows), dtype=torch.int64).to(self.talker.device, non_blocking=True)
        return both[:, 0].contiguous(), both[:, 1].contiguous()

    def _finish(self, one: _Running, *, stops: bool) -> FinishReason:
        if stops:
            return "stop"
        # The row after the last position would not fit the buffers.
        if one.frames >= one.request.max_frames or one.done >= self.talker.length:
            return "length"
        return ""

    def _fail(self, group: list[_Running], error: SpeechError = FAILED) -> list[Frame]:
        for one in group:
            self.cache.clear(one.slot)
            self._release(one)
        return [Frame(one.request.stream, error=error) for one in group]

    def _release(self, one: _Running) -> None:
        del self._running[one.request.stream]
        self._free.append(one.slot)


def slots_needed(options: EngineOptions) -> int:
    """Slots that the talker must have: one for each stream, and scratch."""
    return options.max_num_seqs + 1
