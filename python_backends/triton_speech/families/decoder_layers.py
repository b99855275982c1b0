"""Decoder layers as Qwen2 and Qwen3 have them. Attention is handed in, so that every engine runs this same forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .protocol import Attend
from .rope import Rope, rotate


class StackShape(Protocol):
    """What a checkpoint says of a stack."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def rope_theta(self) -> float: ...


@dataclass(frozen=True)
class AttentionKind:
    """What Qwen's generations differ in."""

    has_biases: bool
    """Of queries, keys and values."""
    norms_heads: bool
    """Queries and keys, before they are turned."""


QWEN2 = AttentionKind(has_biases=True, norms_heads=False)
QWEN3 = AttentionKind(has_biases=False, norms_heads=True)


class RMSNorm(nn.Module):
    """Over the last dimension; ``weight`` is absent where ``affine`` is false."""

    def __init__(self, size: int, eps: float, *, affine: bool = True) -> None:
        super().__init__()
        self.size, self.eps = size, eps
        self.weight = nn.Parameter(torch.ones(size)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.size,), self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention over whatever ``attend`` keeps."""

    def __init__(self, shape: StackShape, kind: AttentionKind, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, shape.head_dim
        self.heads, self.kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        size, inner, kv_size = shape.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(size, inner, bias=kind.has_biases)
        self.k_proj = nn.Linear(size, kv_size, bias=kind.has_biases)
        self.v_proj = nn.Linear(size, kv_size, bias=kind.has_biases)
        self.o_proj = nn.Linear(inner, size, bias=False)
        if kind.norms_heads:
            self.q_norm = RMSNorm(self.head_dim, shape.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, shape.rms_norm_eps)
        self.kind = kind
        self.qkv: nn.Linear | None = None

    def fuse(self) -> None:
        """Joins the three projections into one product. The checkpoint's names are gone afterwards."""
        self.qkv = _joined(self.q_proj, self.k_proj, self.v_proj)
        del self.q_proj, self.k_proj, self.v_proj

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        if self.qkv is None:
            projected = torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), dim=-1)
        else:
            projected = self.qkv(x)
        heads = projected.view(*x.shape[:-1], self.heads + 2 * self.kv_heads, self.head_dim)
        q, k, v = torch.split(heads, [self.heads, self.kv_heads, self.kv_heads], dim=-2)
        if self.kind.norms_heads:
            q, k = self.q_norm(q), self.k_norm(k)
        return self.o_proj(attend(self.layer, rotate(q, *rope), rotate(k, *rope), v).flatten(-2))


class GatedMLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.gate_up: nn.Linear | None = None

    def fuse(self) -> None:
        self.gate_up = _joined(self.gate_proj, self.up_proj)
        del self.gate_proj, self.up_proj

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_up is None:
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, shape: StackShape, kind: AttentionKind, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(shape, kind, layer)
        self.mlp = GatedMLP(shape.hidden_size, shape.intermediate_size)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Stack(nn.Module):
    """Layers with a final norm; ``length`` bounds the positions.

    Args:
        vocabulary: rows of ``embed_tokens``, which is absent without it.
    """

    def __init__(self, shape: StackShape, kind: AttentionKind, length: int, vocabulary: int | None = None) -> None:
        super().__init__()
        if vocabulary is not None:
            self.embed_tokens = nn.Embedding(vocabulary, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, kind, index) for index in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.rope = Rope(shape.head_dim, shape.rope_theta, length)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """x (..., H) at positions (...) -> (..., H), normed."""
        rope = self.rope(positions)
        for layer in self.layers:
            x = layer(x, rope, attend)
        return self.norm(x)


def fuse(model: nn.Module) -> None:
    """Joins the projections that read the same input, in every layer of a model. The checkpoint's names are gone."""
    for part in list(model.modules()):
        if isinstance(part, Attention | GatedMLP):
            part.fuse()


def _joined(*projections: nn.Linear) -> nn.Linear:
    """One projection onto the outputs of all, which have all a bias or none."""
    weight = torch.cat([one.weight for one in projections])
    joined = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if projections[0].bias is not None:
        joined.bias = nn.Parameter(torch.cat([one.bias for one in projections]), requires_grad=False)
    return joined
