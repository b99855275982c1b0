"""The codes of a frame after the first, one after the other, each hearing those before it.

A frame's sequence is short: the talker's state, then the codes 0 to G - 2, so its keys and values are a small buffer
of its own that lives for one frame. Every shape is fixed by the batch and nothing is asked of the device, so that a
frame can be captured as one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder_layers import QWEN3, Stack
from ..protocol import Attend
from .config import TalkerConfig

Choose = Callable[[int, Tensor], Tensor]
"""(group, logits (B, V)) -> codes (B,) int64; groups count from 1."""


class PredictorStack(Stack):
    def __init__(self, config: TalkerConfig) -> None:
        predictor = config.code_predictor_config
        super().__init__(predictor, QWEN3, config.num_code_groups)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(predictor.vocab_size, config.hidden_size) for _ in range(config.num_code_groups - 1)
        )


class CodePredictor(nn.Module):
    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        predictor = config.code_predictor_config
        self.groups = config.num_code_groups
        self.cache_shape = (predictor.num_key_value_heads, self.groups, predictor.head_dim)
        self.model = PredictorStack(config)
        self.lm_head = nn.ModuleList(
            nn.Linear(predictor.hidden_size, predictor.vocab_size, bias=False) for _ in range(self.groups - 1)
        )
        self.small_to_mtp_projection: nn.Module = nn.Identity()
        if predictor.hidden_size != config.hidden_size:
            self.small_to_mtp_projection = nn.Linear(config.hidden_size, predictor.hidden_size)

    def embed(self, group: int, codes: Tensor) -> Tensor:
        """Codes (...) of a group from 1 on -> (..., H) of the talker's width. Codes out of range are clamped."""
        table = self.model.codec_embedding[group - 1]
        assert isinstance(table, nn.Embedding)
        return table(codes.clamp(0, table.num_embeddings - 1))

    def forward(self, state: Tensor, first: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        """The rest of a frame.

        Args:
            state: (B, H), what the talker has made of the row before the frame.
            first: (B, H), the talker's embedding of the frame's first code.
            choose: picks a code from each group's logits.

        Returns:
            Codes (B, G - 1) int64, and the sum of their embeddings (B, H).
        """
        batch, layers = state.shape[0], len(self.model.layers)
        keys = state.new_empty(layers, batch, *self.cache_shape)
        values = torch.empty_like(keys)
        positions = torch.arange(self.groups, device=state.device)
        inputs, start = torch.stack((state, first), dim=1), 0
        codes, embedded = [], torch.zeros_like(state)
        for group in range(1, self.groups):
            stop = start + inputs.shape[1]
            rows = self.model(
                self.small_to_mtp_projection(inputs), positions[start:stop], _attend(keys, values, start, stop)
            )
            code = choose(group, self.lm_head[group - 1](rows[:, -1]))
            codes.append(code)
            inputs, start = self.embed(group, code).unsqueeze(1), stop
            embedded = embedded + inputs[:, 0]
        return torch.stack(codes, dim=1), embedded


def _attend(keys: Tensor, values: Tensor, start: int, stop: int) -> Attend:
    """Causal attention of rows ``start`` to ``stop - 1`` over a frame's buffers (layers, B, kv_heads, G, d)."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys[layer, :, :, start:stop] = k.transpose(1, 2)
        values[layer, :, :, start:stop] = v.transpose(1, 2)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            keys[layer, :, :, :stop],
            values[layer, :, :, :stop],
            # Only the first call has several rows, and it begins at 0.
            is_causal=start == 0,
            enable_gqa=True,
        )
        return out.transpose(1, 2)

    return attend
