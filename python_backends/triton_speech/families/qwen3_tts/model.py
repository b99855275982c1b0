"""The talker's network under the names that a checkpoint's ``model.safetensors`` uses (without their ``talker.``)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder_layers import QWEN3, Stack
from ..protocol import Attend
from ..rope import Rope
from .code_predictor import CodePredictor
from .config import TalkerConfig


class TalkerStack(Stack):
    def __init__(self, config: TalkerConfig, length: int) -> None:
        super().__init__(config, QWEN3, length)
        self.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)


class TextProjection(nn.Module):
    """Text embeddings (..., text_hidden) -> (..., H)."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.text_hidden_size, config.text_hidden_size)
        self.linear_fc2 = nn.Linear(config.text_hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class Qwen3TTSTalker(nn.Module):
    """Language model over frames, its code head, and the code predictor.

    Args:
        config: the checkpoint's ``talker_config``.
        length: positions that a stream may have.
    """

    def __init__(self, config: TalkerConfig, *, length: int) -> None:
        super().__init__()
        self.config, self.length = config, length
        self.model = TalkerStack(config, length)
        self.text_projection = TextProjection(config)
        self.codec_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.code_predictor = CodePredictor(config)

    def materialise(self, device: torch.device) -> None:
        """Recomputes what a checkpoint does not hold, after building on the meta device."""
        for module in self.modules():
            if isinstance(module, Rope):
                module.build_tables(device)

    def embed_text(self, tokens: Tensor) -> Tensor:
        """Text tokens (...) -> (..., H)."""
        return self.text_projection(self.model.text_embedding(tokens))

    def embed_control(self, ids: Tensor) -> Tensor:
        """Codes of the first codebook and controls (...) -> (..., H)."""
        return self.model.codec_embedding(ids)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """Frames (..., G) of codes -> the sum of their embeddings (..., H). Codes out of range are clamped."""
        total = self.embed_control(codes[..., 0].clamp(0, self.config.codes - 1))
        for group in range(1, self.config.num_code_groups):
            total = total + self.code_predictor.embed(group, codes[..., group])
        return total

    def hidden(self, inputs: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Input rows (..., T, H) at positions (..., T) -> states (..., T, H)."""
        return self.model(inputs, positions, attend)
