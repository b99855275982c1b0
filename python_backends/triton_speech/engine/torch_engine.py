"""Continuous batching in one process: slots, chunked prefill, one batched decode step for all streams."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import SpeechError, invalid
from ..families.protocol import TalkerModel
from ..families.recorder import Recorder
from .api import EngineOptions, FinishReason, Frame, TalkerRequest
from .kv_cache import SlotKVCache
from .slots import FAILED, NOT_FINITE, NOTHING_SAID, SCRATCH_SLOT, Running, SlotEngine, slots_needed
from .step_graphs import StepGraphs, graph_shapes

log = logging.getLogger(__name__)


class TorchEngine(SlotEngine):
    """Drives a talker. Single-threaded: ``EngineThread`` gives it a thread.

    Args:
        talker: the model with its state buffers; its slots must be ``slots_needed(options)``.
        options: limits.
        graphs: the key of decode steps that are captured as CUDA graphs now, where the talker's steps can be; steps
            with a larger key are not. None captures nothing.
        record: how a step is captured, in place of a CUDA graph.
        mixes_up_to: one decode step for streams of all ``Sampling.batch_key`` up to this one, for who makes the patches
            groups them; larger ones are refused. None has a step for each key, whatever it is.
    """

    def __init__(
        self,
        talker: TalkerModel,
        options: EngineOptions,
        graphs: int | None = None,
        record: Recorder | None = None,
        *,
        mixes_up_to: Any = None,
    ) -> None:
        super().__init__(options, talker.length)
        self.talker = talker
        self._mixes_up_to = mixes_up_to
        self.cache = SlotKVCache(
            talker.kv_shape,
            slots=slots_needed(options),
            length=talker.length,
            dtype=talker.dtype,
            device=talker.device,
        )
        self._graphs: StepGraphs | None = None
        if graphs is not None and talker.can_be_captured:
            self._capture(graphs, record)

    def add(self, request: TalkerRequest) -> None:
        """Queues a stream.

        Raises:
            SpeechError: UNAVAILABLE when the queue is full, INVALID_ARG when this engine cannot run it.
        """
        most = self._mixes_up_to
        if most is not None and request.sampling.batch_key > most:
            raise invalid("INFERENCE_STEPS", f"is {request.sampling.batch_key}, this engine runs at most {most}")
        super().add(request)

    @torch.inference_mode()
    def step(self) -> list[Frame]:
        """Admits, runs prompts within the budget, then one decode step for all streams that are ready."""
        frames = self._drop_ended()
        frames += self._admit()
        frames += self._prefill()
        by_key: dict[Hashable, list[Running]] = {}
        for one in self._running.values():
            if not _prefill_left(one):
                by_key.setdefault(self._step_key(one.request), []).append(one)
        for key, group in by_key.items():
            try:
                frames += self._decode(group, key)
            except SpeechError as error:
                log.error("decode step of %d streams failed: %s", len(group), error.text)
                frames += self._fail(group, error)
            except Exception:
                log.exception("decode step of %d streams failed", len(group))
                frames += self._fail(group)
        return frames

    def _step_key(self, request: TalkerRequest) -> Hashable:
        return self._mixes_up_to or request.sampling.batch_key

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

    def _decode(self, group: list[Running], key: Any) -> list[Frame]:
        rows = [(one.slot, one.done) for one in group]
        longest = max(position for _, position in rows)
        if self.options.deterministic:
            rows += [(SCRATCH_SLOT, 0)] * (self.options.max_num_seqs - len(rows))
            longest = self.cache.length - 1
        made = self._replay(rows, longest, key)
        if made is None:
            made = self._run(*self._columns(rows), longest, key)
        # One copy to the host for all streams of the step.
        host = made.cpu()
        frames = []
        for row, one in enumerate(group):
            if not host[row].isfinite().all():
                frames += self._fail([one], NOT_FINITE)
                continue
            ends = bool(host[row, -1])
            if ends and not self.talker.ends_with_frame:
                frames += self._end_without_frame(one)
                continue
            has_frame = not self.talker.marks_frames or bool(host[row, 0])
            one.done += 1
            one.frames += has_frame
            finish = self._finish(one, stops=ends)
            if finish and not one.frames:
                frames += self._fail([one], NOTHING_SAID)
                continue
            if has_frame or finish:
                patch = host[row, :-1].view(self.talker.patch_shape).clone() if has_frame else None
                frames.append(Frame(one.request.stream, patch, finish))
            if finish:
                self._release(one)
        return frames

    def _replay(self, rows: list[tuple[int, int]], longest: int, key: Any) -> Tensor | None:
        """What ``_run`` returns, from a graph; None where none fits."""
        made = None if self._graphs is None else self._graphs.run(rows, longest, key)
        if made is None or not self.talker.emits_elsewhere:
            return made
        state, residual = made.unbind(1)
        return self._emit(*self._columns(rows), state.contiguous(), residual.contiguous(), key)

    def _run(self, slots: Tensor, positions: Tensor, longest: int, key: Any) -> Tensor:
        """One step of rows (B,): each row's patch and whether its stream ends, (B, N) fp32."""
        return self._emit(slots, positions, *self._hidden(slots, positions, longest), key)

    def _hidden(self, slots: Tensor, positions: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        attend = self.cache.decode(slots, positions, longest)
        if self.talker.can_be_captured:
            self.talker.reach = longest + 1
        return self.talker.hidden(slots, positions, attend)

    def _emit(self, slots: Tensor, positions: Tensor, state: Tensor, residual: Tensor, key: Any) -> Tensor:
        patches, stops = self.talker.emit(slots, positions, state, residual, key)
        return torch.cat((patches.flatten(1).float(), stops.unsqueeze(1).float()), dim=1)

    @torch.inference_mode()
    def _capture(self, key: int, record: Recorder | None) -> None:
        most, length = self.options.max_num_seqs, self.cache.length
        shapes = [(most, length)] if self.options.deterministic else graph_shapes(most, length)

        def step(slots: Tensor, positions: Tensor, longest: int) -> Tensor:
            return self._run(slots, positions, longest, key)

        def states(slots: Tensor, positions: Tensor, longest: int) -> Tensor:
            return torch.stack(self._hidden(slots, positions, longest), dim=1)

        captured = states if self.talker.emits_elsewhere else step
        self._graphs = StepGraphs(captured, shapes, key, self.talker.device, record)
        self.graph_uses = {"decode": self._graphs.use}

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
