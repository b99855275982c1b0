"""The decoder of the 12 Hz speech tokenizer, under the names of its checkpoint: codes to audio at once.

Everything in it is causal. ``streaming_decoder`` does the same chunk by chunk, on the same weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder_layers import GatedMLP, RMSNorm
from ..rope import Rope, rotate
from .codec_config import DecoderConfig
from .quantizer import DecoderQuantizer, look_up

NORM_EPS = 1e-6
SNAKE_EPS = 1e-9
DILATIONS = (1, 3, 9)
TAPS = 7


class CausalConv(nn.Module):
    """(B, C, T) -> (B, C', T), zeros in front."""

    def __init__(self, channels: int, out: int, taps: int, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, out, taps, dilation=dilation, groups=groups)
        self.context = (taps - 1) * dilation

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (self.context, 0)))


class CausalUpsample(nn.Module):
    """(B, C, T) -> (B, C', T * stride); of ``taps`` that are more than the stride the surplus at the end is cut off."""

    def __init__(self, channels: int, out: int, taps: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(channels, out, taps, stride)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)[..., : x.shape[-1] * self.stride]


class SnakeBeta(nn.Module):
    """x + sin(a x)^2 / b with a and b as logarithms, one for each channel (arXiv 2206.04658)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def factors(self) -> tuple[Tensor, Tensor]:
        """a and 1 / b, (C,) each."""
        return self.alpha.exp(), 1.0 / (self.beta.exp() + SNAKE_EPS)

    def forward(self, x: Tensor) -> Tensor:
        frequency, inverse = (factor.unsqueeze(-1) for factor in self.factors())
        return x + inverse * torch.sin(x * frequency).square()


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution and a gateless MLP around it (arXiv 2201.03545)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, TAPS, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 1e-6))

    def mix(self, x: Tensor) -> Tensor:
        """What follows the convolution: (..., C) -> (..., C)."""
        return self.gamma * self.pwconv2(F.gelu(self.pwconv1(self.norm(x))))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.dwconv(x).transpose(1, 2)).transpose(1, 2)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, TAPS, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x))))


class DecoderBlock(nn.Module):
    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        units = [ResidualUnit(half, dilation) for dilation in DILATIONS]
        self.block = nn.Sequential(SnakeBeta(channels), CausalUpsample(channels, half, 2 * rate, rate), *units)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class LayerScale(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((size,), 0.01))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class WindowAttention(nn.Module):
    """Heads for attention over a window of frames; keys are kept before they are turned."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Queries (B, T, heads d) of the last T of S frames, keys and values (B, S, kv_heads d) -> (B, T, H).

        Args:
            rope: cos, sin (S, 1, d). Only distances between frames count.
            mask: (T, S) or (B, 1, T, S) bool.
        """
        cos, sin = rope
        count = q.shape[1]
        queries = rotate(q.view(*q.shape[:-1], self.heads, self.head_dim), cos[-count:], sin[-count:])
        keys = rotate(k.view(*k.shape[:-1], self.kv_heads, self.head_dim), cos, sin)
        values = v.view(*v.shape[:-1], self.kv_heads, self.head_dim)
        out = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class TransformerLayer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = WindowAttention(config)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def add_mlp(self, x: Tensor) -> Tensor:
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        normed, attention = self.input_layernorm(x), self.self_attn
        q, k, v = attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)
        return self.add_mlp(x + self.self_attn_layer_scale(attention(q, k, v, rope, mask)))


class WindowTransformer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, latent) -> (B, T, latent)."""
        frames = torch.arange(x.shape[1], device=x.device)
        rope = frame_rope(self.config, x.shape[1], x.device)
        distance = frames.unsqueeze(1) - frames
        mask = (distance >= 0) & (distance < self.config.sliding_window)
        x = self.input_proj(x)
        for layer in self.layers:
            x = layer(x, rope, mask)
        return self.output_proj(self.norm(x))


def frame_rope(config: DecoderConfig, frames: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos, sin (frames, 1, d)."""
    tables = Rope(config.head_dim, config.rope_theta, frames)
    return tables.cos.unsqueeze(1).to(device), tables.sin.unsqueeze(1).to(device)


class SpeechDecoder(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.pre_transformer = WindowTransformer(config)
        self.quantizer = DecoderQuantizer(config)
        self.pre_conv = CausalConv(config.codebook_dim, config.latent_dim, 3)
        self.upsample = nn.ModuleList(
            nn.Sequential(
                CausalUpsample(config.latent_dim, config.latent_dim, factor, factor), ConvNeXtBlock(config.latent_dim)
            )
            for factor in config.upsampling_ratios
        )
        channels = [config.decoder_dim // 2**index for index in range(len(config.upsample_rates) + 1)]
        blocks = [DecoderBlock(width, rate) for width, rate in zip(channels, config.upsample_rates, strict=False)]
        self.decoder = nn.Sequential(
            CausalConv(config.latent_dim, channels[0], TAPS),
            *blocks,
            SnakeBeta(channels[-1]),
            CausalConv(channels[-1], 1, TAPS),
        )

    def forward(self, codes: Tensor) -> Tensor:
        """Frames (B, T, G) of codes, T >= 1 -> audio (B, T * hop) in [-1, 1]. Codes out of range are clamped."""
        vectors = look_up(self.quantizer.tables(), codes)
        x = self.pre_transformer(self.pre_conv(vectors.transpose(1, 2)).transpose(1, 2)).transpose(1, 2)
        for stage in self.upsample:
            x = stage(x)
        return self.decoder(x).squeeze(1).clamp(-1, 1)
