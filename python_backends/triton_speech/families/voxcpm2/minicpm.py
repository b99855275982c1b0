"""MiniCPM4 blocks. Attention is handed in, so that every engine runs this same forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..shapes_only import are_shapes_only
from . import ops
from .config import StackConfig

# attend(layer, q (..., heads, d), k (..., kv_heads, d), v (..., kv_heads, d)) -> (..., heads, d)
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def after(self, x: Tensor, delta: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        """The residual sum ``x + scale * delta`` and its norm."""
        return ops.add_norm(x, delta, self.weight, self.eps, scale)


class LongRope(nn.Module):
    """Rotary position tables (length, d) in fp32, scaled as LongRoPE says (arXiv 2402.13753)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: StackConfig, length: int) -> None:
        super().__init__()
        self.config, self.length = config, length
        if not are_shapes_only():
            self.build_tables()

    def build_tables(self, device: torch.device | str | None = None) -> None:
        """Computes the tables; to be called when a model that was built of shapes only has got its weights."""
        config, scaling = self.config, self.config.rope_scaling
        stretch = config.max_position_embeddings / scaling.original_max_position_embeddings
        magnitude = math.sqrt(1 + math.log(stretch) / math.log(scaling.original_max_position_embeddings))
        factors = torch.tensor(
            scaling.long_factor if stretch > 1 else scaling.short_factor, device=device, dtype=torch.float32
        )
        dims = torch.arange(0, config.head_dim, 2, device=device).float() / config.head_dim
        positions = torch.arange(self.length, device=device).float()
        angles = torch.outer(positions, 1.0 / factors) * (1.0 / config.rope_theta**dims)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos() * magnitude, persistent=False)
        self.register_buffer("sin", angles.sin() * magnitude, persistent=False)

    def forward(self, positions: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
        """cos, sin (..., d) of positions (...); None means 0 to count - 1."""
        rows = slice(count) if positions is None else positions
        return self.cos[rows], self.sin[rows]


def build_tables(part: nn.Module, device: torch.device) -> None:
    """Computes what a checkpoint does not hold, when a model that was built of shapes only has got its weights."""
    for module in part.modules():
        if isinstance(module, LongRope):
            module.build_tables(device)


def fuse(part: nn.Module) -> None:
    """Joins projections that read the same input. The checkpoint's names are gone afterwards."""
    for module in part.modules():
        if isinstance(module, MiniCPM):
            module.fuse()


class Attention(nn.Module):
    """Grouped-query attention over whatever ``attend`` keeps."""

    def __init__(self, config: StackConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        self.qkv: nn.Parameter | None = None

    def fuse(self) -> None:
        """Joins the three projections into one product. The checkpoint's names are gone afterwards."""
        weights = [self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]
        self.qkv = nn.Parameter(torch.cat(weights), requires_grad=False)
        del self.q_proj, self.k_proj, self.v_proj

    def project(self, x: Tensor) -> Tensor:
        """x (..., H) -> queries, keys and values side by side (..., (heads + 2 kv_heads) d)."""
        if self.qkv is None:
            return torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), dim=-1)
        return F.linear(x, self.qkv)

    def mix(self, projected: Tensor, rope: tuple[Tensor, Tensor] | None, attend: Attend | None) -> Tensor:
        """What ``project`` gives -> the heads side by side (..., heads d), which ``o_proj`` takes.

        Without ``attend`` each sequence of projected (B, T, ...) attends to the whole of itself.
        """
        lead = projected.shape[:-1]
        qkv = projected.view(*lead, self.heads + 2 * self.kv_heads, self.head_dim)
        if attend is None:
            assert rope is not None
            return ops.local_attention(qkv, *rope, self.heads, self.kv_heads).flatten(-2)
        if rope is not None:
            cos, sin = (table.expand(*lead, -1).reshape(-1, self.head_dim) for table in rope)
            rows = qkv.view(-1, *qkv.shape[-2:])
            qkv = ops.rotate_heads(rows, cos, sin, self.heads + self.kv_heads).view(qkv.shape)
        q, k, v = torch.split(qkv, [self.heads, self.kv_heads, self.kv_heads], dim=-2)
        return attend(self.layer, q, k, v).flatten(-2)


class GatedMLP(nn.Module):
    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.gate_up: nn.Parameter | None = None

    def fuse(self) -> None:
        self.gate_up = nn.Parameter(torch.cat((self.gate_proj.weight, self.up_proj.weight)), requires_grad=False)
        del self.gate_proj, self.up_proj

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_up is None:
            both = torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1)
        else:
            both = F.linear(x, self.gate_up)
        return self.down_proj(ops.silu_mul(both))


class Block(nn.Module):
    """The parts of one layer. ``MiniCPM`` runs them, for a residual sum belongs with the norm that follows it."""

    def __init__(self, config: StackConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def few_rows(
        self,
        rows: ops.Gained,
        rope: tuple[Tensor, Tensor] | None,
        attend: Attend | None,
        scale: float,
        next_gain: Tensor,
    ) -> ops.Gained:
        """The whole layer of fused weights where ``ops.few_rows``: norms and sums belong with the products there.

        rows (..., H) are for this layer's first norm, the result (..., H) for the norm with ``next_gain``.
        """
        attention, mlp = self.self_attn, self.mlp
        assert attention.qkv is not None
        assert mlp.gate_up is not None
        first, second = self.input_layernorm, self.post_attention_layernorm
        mixed = attention.mix(ops.root_linear(rows, first.eps, attention.qkv), rope, attend)
        rows = ops.linear_add(mixed, attention.o_proj.weight, rows.x, scale, second.weight)
        inner = ops.root_gate_up(rows, second.eps, mlp.gate_up)
        return ops.linear_add(inner, mlp.down_proj.weight, rows.x, scale, next_gain)


class MiniCPM(nn.Module):
    """A stack of blocks with a final norm, and an embedding table where the vocabulary is not empty.

    ``first_layer`` numbers the layers that ``attend`` sees, so that two stacks can share one cache.
    ``length`` bounds the positions.
    """

    def __init__(self, config: StackConfig, *, length: int, first_layer: int = 0) -> None:
        super().__init__()
        self.config = config
        if config.vocab_size:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, first_layer + index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = None if config.no_rope else LongRope(config, length)

    @property
    def blocks(self) -> Iterable[Block]:
        return cast("Iterable[Block]", self.layers)

    def fuse(self) -> None:
        for block in self.blocks:
            block.self_attn.fuse()
            block.mlp.fuse()

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens (...) -> (..., H)."""
        return self.embed_tokens(tokens) * self.config.embedding_scale

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        attend: Attend | None = None,
        wanted: slice = slice(None),
    ) -> Tensor:
        """x (..., T, H) at positions (..., T) -> the ``wanted`` ones of (..., T, H).

        Without ``positions`` these are 0 to T - 1. Without ``attend`` each sequence attends to the whole of itself.
        """
        if self.takes_few_rows(x):
            return self.norm.after(self.few_rows(x, positions, attend).x, None, 1.0)[1][..., wanted, :]
        rope = None if self.rope is None else self.rope(positions, x.shape[-2])
        scale = self.config.residual_scale
        delta: Tensor | None = None
        # Not on the CPU: its library's products depend, in the last bit, on the number of rows.
        last = len(self.layers) - 1 if x.is_cuda else None
        for index, block in enumerate(self.blocks):
            x, normed = block.input_layernorm.after(x, delta, scale)
            mixed = block.self_attn.mix(block.self_attn.project(normed), rope, attend)
            if index == last:
                x, mixed = x[..., wanted, :], mixed[..., wanted, :]
            x, normed = block.post_attention_layernorm.after(x, block.self_attn.o_proj(mixed), scale)
            delta = block.mlp(normed)
        normed = self.norm.after(x, delta, scale)[1]
        return normed[..., wanted, :] if last is None else normed

    def takes_few_rows(self, x: Tensor) -> bool:
        """Whether ``few_rows`` is the faster way for x (..., H)."""
        block = next(iter(self.blocks))
        widths = (x.shape[-1], self.config.num_attention_heads * self.config.head_dim, self.config.intermediate_size)
        return block.mlp.gate_up is not None and ops.few_rows(x, widths)

    def few_rows(self, x: Tensor, positions: Tensor | None = None, attend: Attend | None = None) -> ops.Gained:
        """As ``forward`` for fused weights, all of (..., T, H), before the final norm."""
        rope = None if self.rope is None else self.rope(positions, x.shape[-2])
        blocks = list(self.blocks)
        gains = [block.input_layernorm.weight for block in blocks] + [self.norm.weight]
        rows = ops.gain_rows(x, gains[0])
        for block, next_gain in zip(blocks, gains[1:], strict=True):
            rows = block.few_rows(rows, rope, attend, self.config.residual_scale, next_gain)
        return rows
