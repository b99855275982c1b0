"""CUDA graphs of both language models for steps with prompts in them, paged attention included.

vLLM captures steps of decode rows only. A step with a prompt in it runs layer by layer from Python, which takes ten
times longer than a short prompt computes. Here such a step is padded to one of a few numbers of rows, and its
attention reads what vLLM planned for it from buffers that stay where they are. FlashAttention 3 allows that: it takes
the lengths of requests from the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import ForwardContext, get_forward_context, override_forward_context

from ..slots import SCRATCH_SLOT

PROMPT_SIZES = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
NO_CACHE = -1
"""Where vLLM writes the keys and values of a row that only pads: nowhere."""

Hidden = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    state: Tensor
    residual: Tensor


class PromptGraphs:
    """Replays ``hidden`` for steps of up to the largest of ``sizes`` rows.

    Build it inside a step with a prompt in it: the plan of that step is the pattern for those of all others.

    Args:
        hidden: slots (N,) and positions (N,) -> LM state (N, H) and residual state (N, H).
        sizes: numbers of rows.
        max_num_seqs: requests that a step may have.
        max_length: positions that a request may have.
        single_split: attention sums over a request's keys in one go, whatever else runs.
    """

    def __init__(
        self, hidden: Hidden, sizes: Sequence[int], max_num_seqs: int, max_length: int, *, single_split: bool = False
    ) -> None:
        context = get_forward_context()
        plan = _plan(context)
        most = max(sizes)
        device = plan.seq_lens.device

        def buffer(*shape: int, dtype: torch.dtype, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self._slots = buffer(most, dtype=torch.int64, value=SCRATCH_SLOT)
        self._positions = buffer(most, dtype=torch.int64)
        self._cache_rows = buffer(most, dtype=plan.slot_mapping.dtype, value=NO_CACHE)
        self._starts = buffer(max_num_seqs + 1, dtype=plan.query_start_loc.dtype)
        self._lengths = buffer(max_num_seqs, dtype=plan.seq_lens.dtype)
        self._blocks = buffer(max_num_seqs, plan.block_table.shape[1], dtype=plan.block_table.dtype)
        self._max_length = max_length
        self._single_split = single_split
        self._sizes = sorted(sizes)
        pool = torch.cuda.graph_pool_handle()
        # Largest first: the smaller graphs then fit into the memory of the first.
        self._graphs = {size: self._capture(hidden, size, context, pool) for size in reversed(self._sizes)}

    def hidden(self, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """As ``hidden`` itself, in the step that runs now; None where no graph is large enough.

        The results are overwritten by the next call.
        """
        count = len(slots)
        size = next((size for size in self._sizes if size >= count), None)
        plan = _plan(get_forward_context())
        requests = len(plan.seq_lens)
        if size is None or requests > len(self._lengths):
            return None
        _fill(self._slots[:size], slots, SCRATCH_SLOT)
        _fill(self._positions[:size], positions, 0)
        _fill(self._cache_rows[:size], plan.slot_mapping[:count], NO_CACHE)
        _fill(self._starts, plan.query_start_loc[: requests + 1], count)
        _fill(self._lengths, plan.seq_lens, 0)
        self._blocks[:requests].copy_(plan.block_table[:requests])
        one = self._graphs[size]
        one.graph.replay()
        return one.state[:count], one.residual[:count]

    def _capture(self, hidden: Hidden, size: int, context: ForwardContext, pool: Any) -> _Graph:
        """One request of ``size`` rows, or as many of the longest as that takes, stands for any mix."""
        self._starts.copy_(torch.arange(len(self._starts)).mul_(self._max_length).clamp_(max=size))
        self._lengths.copy_(self._starts.diff())
        slots, positions = self._slots[:size], self._positions[:size]
        with override_forward_context(self._context(context, size)):
            hidden(slots, positions)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                state, residual = hidden(slots, positions)
        return _Graph(graph, state, residual)

    def _context(self, context: ForwardContext, size: int) -> ForwardContext:
        plan = dataclasses.replace(
            _plan(context),
            num_actual_tokens=size,
            max_query_len=size,
            query_start_loc=self._starts,
            max_seq_len=self._max_length,
            seq_lens=self._lengths,
            block_table=self._blocks,
            slot_mapping=self._cache_rows[:size],
            scheduler_metadata=None,
            # FlashAttention decides how often to split the keys from all requests together unless it is told.
            max_num_splits=1 if self._single_split else 0,
        )
        layers = list(context.attn_metadata)
        return dataclasses.replace(
            context,
            attn_metadata=dict.fromkeys(layers, plan),
            slot_mapping=dict.fromkeys(layers, self._cache_rows[:size]),
        )


def _plan(context: ForwardContext) -> Any:
    """What vLLM's attention is told about this step: the same for all layers, which share one cache."""
    return next(iter(context.attn_metadata.values()))


def _fill(buffer: Tensor, values: Tensor, rest: int) -> None:
    buffer[: len(values)].copy_(values)
    buffer[len(values) :].fill_(rest)
