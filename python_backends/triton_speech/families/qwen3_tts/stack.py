"""Qwen3 decoder layers. Attention is handed in, so that every engine runs this same forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..protocol import Attend
from ..rope import Rope, rotate
from .config import StackConfig


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention with normed queries and keys, over whatever ``attend`` keeps."""

    def __init__(self, config: StackConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.qkv: nn.Parameter | None = None

    def fuse(self) -> None:
        """Joins the three projections into one product. The checkpoint's names are gone afterwards."""
        weights = [self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]
        self.qkv = nn.Parameter(torch.cat(weights), requires_grad=False)
        del self.q_proj, self.k_proj, self.v_proj

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        if self.qkv is None:
            projected = torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), dim=-1)
        else:
            projected = F.linear(x, self.qkv)
        heads = projected.view(*x.shape[:-1], self.heads + 2 * self.kv_heads, self.head_dim)
        q, k, v = torch.split(heads, [self.heads, self.kv_heads, self.kv_heads], dim=-2)
        q, k = rotate(self.q_norm(q), *rope), rotate(self.k_norm(k), *rope)
        return self.o_proj(attend(self.layer, q, k, v).flatten(-2))


class GatedMLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.gate_up: nn.Parameter | None = None

    def fuse(self) -> None:
        self.gate_up = nn.Parameter(torch.cat((self.gate_proj.weight, self.up_proj.weight)), requires_grad=False)
        del self.gate_proj, self.up_proj

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_up is None:
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config: StackConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Stack(nn.Module):
    """Layers with a final norm; ``length`` bounds the positions."""

    def __init__(self, config: StackConfig, length: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = Rope(config.head_dim, config.rope_theta, length)

    def fuse(self) -> None:
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.self_attn.fuse()
            layer.mlp.fuse()

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """x (..., T, H) at positions (..., T) -> (..., T, H), normed."""
        rope = self.rope(positions)
        for layer in self.layers:
            x = layer(x, rope, attend)
        return self.norm(x)
