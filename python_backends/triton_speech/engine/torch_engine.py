"""Continuous batching in one process: slots, chunked prefill, one batched decode step for all streams."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from ..errors import SpeechError
from ..families.protocol import TalkerModel
from .api import EngineOptions, FinishReason, Frame
from .kv_cache import SlotKVCache
from .slots import FAILED, NOT_FINITE, SCRATCH_SLOT, Running, SlotEngine, slots_needed

log = logging.getLogger(__name__)


class TorchEngine(SlotEngine):
    """Drives a talker. Single-threaded: ``EngineThread`` gives it a thread.

    Args:
        talker: the model with its state buffers; its slots must be ``slots_needed(options)``.
        options: limits.
    """

    def __init__(self, talker: TalkerModel, options: EngineOptions) -> None:
        super().__init__(options, talker.length)
        self.talker = talker
        self.cache = SlotKVCache(
            talker.kv_shape,
            slots=slots_needed(options),
            length=talker.length,
            dtype=talker.dtype,
            device=talker.device,
        )

    @torch.inference_mode()
    def step(self) -> list[Frame]:
        """Admits, runs prompts within the budget, then one decode step for all streams that are ready."""
        frames = self._drop_cancelled()
        frames += self._admit()
        frames += self._prefill()
        by_key: dict[Hashable, list[Running]] = {}
        for one in self._running.values():
            if not _prefill_left(one):
                by_key.setdefault(one.request.sampling.batch_key, []).append(one)
        for key, group in by_key.items():
            try:
                frames += self._decode(group, key)
            except Exception:
                log.exception("decode step of %d streams failed", len(group))
                frames += self._fail(group)
        return frames

    def _prefill(self) -> list[Frame]:
        budget = self.options.prefill_budget
        failed = []
        for one in list(self._running.values()):
            while _prefill_left(one) and budget > 0:
                count = min(_prefill_left(one), self.options.prefill_chunk)
                try:
                    self._run_chunk(one, count)
                except Exception:
                    log.exception("prefill of stream %s failed", one.request.stream)
                    failed += self._fail([one])
                    break
                budget -= count
        return failed

    def _run_chunk(self, one: Running, count: int) -> None:
        start, stop = one.done, one.done + count
        positions = torch.arange(start, stop, device=self.talker.device)
        slots = torch.full_like(positions, one.slot)
        self.talker.hidden(slots, positions, self.cache.prefill(one.slot, start, stop))
        one.done = stop

    def _decode(self, group: list[Running], key: Hashable) -> list[Frame]:
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

    def _finish(self, one: Running, *, stops: bool) -> FinishReason:
        if stops:
            return "stop"
        # The row after the last position would not fit the buffers.
        if one.frames >= one.request.max_frames or one.done >= self.talker.length:
            return "length"
        return ""

    def _fail(self, streams: list[Running], error: SpeechError = FAILED) -> list[Frame]:
        for one in streams:
            self.cache.clear(one.slot)
        return super()._fail(streams, error)


def _prefill_left(one: Running) -> int:
    """Prompt rows still to run. The last one makes the first frame, so it runs as a decode row."""
    return max(one.request.prompt.length - 1 - one.done, 0)
