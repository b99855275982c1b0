"""Qwen2 decoder layers. Attention is handed in, so that every engine runs this same forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..protocol import Attend
from ..rope import Rope, rotate
from .config import DecoderConfig


class RMSNorm(nn.Module):
    """Over the last dimension; ``weight`` is absent where ``affine`` is false."""

    def __init__(self, size: int, eps: float, *, affine: bool = True) -> None:
        super().__init__()
        self.size, self.eps = size, eps
        self.weight = nn.Parameter(torch.ones(size)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.size,), self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention over whatever ``attend`` keeps; only queries, keys and values have biases."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        kv_size = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, kv_size)
        self.v_proj = nn.Linear(config.hidden_size, kv_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attend(self.layer, rotate(q, *rope), rotate(k, *rope), v).flatten(-2))


class GatedMLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class LanguageModel(nn.Module):
    """Embeddings, layers and a final norm; ``length`` bounds the positions."""

    def __init__(self, config: DecoderConfig, length: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = Rope(config.head_dim, config.rope_theta, length)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Input rows x (..., H) at positions (...) -> states (..., H), normed."""
        rope = self.rope(positions)
        for layer in self.layers:
            x = layer(x, rope, attend)
        return self.norm(x)
