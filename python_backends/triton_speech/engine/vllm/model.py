"""A talker as vLLM sees it: a language model whose tokens are the numbers of state slots.

The next input of a speech talker is an embedding that it computed itself, not that of a sampled token. So the token id
of every position, prompt or speech, is the number of the request's slot, and the model reads its input from the
slot's buffers at the position. Greedy sampling over ``slots + 1`` tokens yields the slot's own number again, or the
end token. Paged attention, batching, chunked prefill, preemption and CUDA graphs are vLLM's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention

from ...families.graph_use import GraphUse
from ...families.registry import load_family
from ..slots import SCRATCH_SLOT
from .progress import Progress
from .prompt_graphs import PROMPT_SIZES, PromptGraphs
from .tail_graphs import TailGraphs

NEVER = -1e4


class SlotTokenModel(nn.Module):
    """Built by vLLM from a configuration that ``engine.py`` writes; it names family, checkpoint and slots."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        own = model_config.hf_config
        self.slots: int = own.talker_slots
        self.batch_key: Any = own.talker_batch_key
        self.max_num_seqs: int = vllm_config.scheduler_config.max_num_seqs
        self.max_rows: int = vllm_config.scheduler_config.max_num_batched_tokens
        self.length: int = model_config.max_model_len
        self.deterministic: bool = own.talker_deterministic
        """Every step has the same shape: as many rows, and as many tails, as a step can have at most."""
        self._tails: TailGraphs | None = None
        self._prompts: PromptGraphs | None = None
        self._awaits_prompt = False
        self.graph_uses = {"decode": GraphUse(), "prompt": GraphUse(), "tail": GraphUse()}
        self.forwards = 0
        """Steps of requests that came here: all but those that vLLM's own graphs ran."""
        # Not a submodule: its weights come from its own checkpoint and are none of vLLM's business.
        self.talker = load_family(own.talker_family).load_talker(
            Path(own.talker_checkpoint),
            slots=self.slots,
            device=str(vllm_config.device_config.device),
            dtype=str(model_config.dtype).removeprefix("torch."),
            length=model_config.max_model_len,
            **own.talker_options,
        )
        self.progress = Progress(self.slots, self.talker.device)
        shape = self.talker.kv_shape
        self.attention = nn.ModuleList(
            Attention(
                shape.heads,
                shape.head_dim,
                scale=shape.head_dim**-0.5,
                num_kv_heads=shape.kv_heads,
                cache_config=vllm_config.cache_config,
                quant_config=None,
                prefix=f"layers.{layer}.attn",
            )
            for layer in range(shape.layers)
        )

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Part of vLLM's interface: the rows that ``forward`` would read at position 0."""
        return self.talker.inputs[input_ids.long(), 0]

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Rows (N,) of slot numbers and positions -> (N, 2) fp32: the slot's number, and 1 where the stream ends."""
        count = len(input_ids)
        self.forwards += self._has_plan() and not _is_capturing()
        slots, positions = self._real_rows(input_ids.long(), positions.long())
        if self.deterministic:
            slots, positions = _pad(slots, self.max_rows, SCRATCH_SLOT), _pad(positions, self.max_rows)
        state, residual = self._hidden(slots, positions)
        out = torch.zeros(count, 2, device=slots.device, dtype=torch.float32)
        out[:, 0] = input_ids
        rows = self._last_rows(count)
        is_new = self.progress.is_new(slots[rows], positions[rows])
        makers, places = torch.where(is_new, slots[rows], SCRATCH_SLOT), torch.where(is_new, positions[rows], 0)
        stops = self._emit(makers, places, state[rows], residual[rows])
        self.progress.advance(makers, places, stops)
        out[rows, 1] = self.progress.is_over(slots[rows], positions[rows]).float()
        return out

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """(B, 2) from ``forward`` -> (B, slots + 1): one token at 0, the others at a value that never wins."""
        end = self.slots
        token = torch.where(hidden_states[:, 1] > 0, end, hidden_states[:, 0]).long()
        logits = torch.full((len(token), end + 1), NEVER, device=token.device, dtype=torch.float32)
        return logits.scatter_(1, token[:, None], 0.0)

    def load_weights(self, weights: Any) -> set[str]:
        """Nothing is left to load."""
        return {name for name, _ in self.named_parameters()}

    def capture(self, sizes: Sequence[int]) -> None:
        """Captures what vLLM does not: steps with prompts in them. After its own capture, before any request.

        Tails of up to the largest of ``sizes`` requests are captured now, prompts in the first step that has one.
        """
        self._tails = TailGraphs(self.talker, self.batch_key, sizes, self.talker.inputs.shape[-1])
        self._awaits_prompt = True

    def _hidden(self, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        if self._has_plan() and (self.deterministic or self._plan().max_query_len > 1):
            if self._awaits_prompt:
                self._awaits_prompt = False
                sizes = [self.max_rows] if self.deterministic else [n for n in PROMPT_SIZES if n <= self.max_rows]
                self._prompts = PromptGraphs(
                    self._eager_hidden, sizes, self.max_num_seqs, self.length, single_split=self.deterministic
                )
            if self._prompts is not None:
                both = self._prompts.hidden(slots, positions)
                self.graph_uses["prompt"].count(replayed=both is not None)
                if both is not None:
                    return both
        elif self._tails is not None and self._has_plan() and not _is_capturing():
            self.graph_uses["decode"].fallbacks += 1
        return self._eager_hidden(slots, positions)

    def _eager_hidden(self, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.talker.hidden(slots, positions, self._attend)

    def _emit(self, slots: Tensor, positions: Tensor, state: Tensor, residual: Tensor) -> Tensor:
        count = len(slots)
        if self.deterministic:
            slots, positions = _pad(slots, self.max_num_seqs, SCRATCH_SLOT), _pad(positions, self.max_num_seqs)
            state, residual = _pad(state, self.max_num_seqs), _pad(residual, self.max_num_seqs)
        if self._tails is not None and not _is_capturing():
            stops = self._tails.emit(slots, positions, state, residual)
            self.graph_uses["tail"].count(replayed=stops is not None)
            if stops is not None:
                return stops[:count]
        return self.talker.emit(slots, positions, state, residual, self.batch_key)[1][:count]

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not q.is_cuda:
            # vLLM's attention on the CPU weighs what lies behind a stream's end with 0, and 0 times NaN is NaN: a
            # stream that went wrong would reach those that get its blocks of the cache after it.
            k, v = k.nan_to_num(0.0), v.nan_to_num(0.0)
        rows = len(q)
        if self.deterministic and self._has_plan():
            rows = self._plan().num_actual_tokens
        out = self.attention[layer](q[:rows].flatten(1), k[:rows].flatten(1), v[:rows].flatten(1))
        return _pad(out.view(rows, *q.shape[1:]), len(q))

    def _real_rows(self, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Sends rows of no stream to the scratch slot.

        A graph's padding holds what an earlier step left there. vLLM begins a step before it has seen the ends of the
        one before: the row of a stream that is over holds the end token.
        """
        mappings = get_forward_context().slot_mapping
        if not mappings:
            return torch.zeros_like(slots), torch.zeros_like(positions)
        real = (next(iter(mappings.values()))[: len(slots)] >= 0) & (slots < self.slots)
        return torch.where(real, slots, SCRATCH_SLOT), torch.where(real, positions, 0)

    def _last_rows(self, count: int) -> Any:
        """The rows that may make a frame: each request's last one. All rows of a step of single-row requests."""
        if not self._has_plan():
            return slice(0, min(count, self.max_num_seqs))
        if self._plan().max_query_len == 1:
            return slice(0, count)
        return self._plan().query_start_loc[1:].long() - 1

    def _has_plan(self) -> bool:
        """Whether this is a step of requests, not a trial of shapes."""
        return bool(get_forward_context().attn_metadata)

    def _plan(self) -> Any:
        """What vLLM's attention is told about this step: the same for all layers, which share one cache."""
        return next(iter(get_forward_context().attn_metadata.values()))


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _pad(values: Tensor, count: int, value: int = 0) -> Tensor:
    """values (N, ...) and as many rows more of one value as make ``count``."""
    if len(values) == count:
        return values
    return torch.cat((values, values.new_full((count - len(values), *values.shape[1:]), value)))
