"""The encoder of the 12 Hz speech tokenizer, under the names of its checkpoint: Mimi's (arXiv 2410.00037).

Convolutions lower the rate, a transformer looks back over all that came before, and a last convolution halves the rate.
The configuration names a window for the transformer, which upstream's attention does not apply; nor is it applied here.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..rope import Rope, rotate
from .codec_config import EncoderConfig
from .quantizer import EncoderQuantizer
from .speech_decoder import LayerScale


class StridedConv(nn.Module):
    """(B, C, T) -> (B, C', ceil(T / stride)): padded in front, and behind to a whole number of strides."""

    def __init__(
        self,
        channels: int,
        out: int,
        taps: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
        repeats_edges: bool = False,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, out, taps, stride, dilation=dilation, bias=bias)
        self.context = (taps - 1) * dilation + 1 - stride
        self.mode = "replicate" if repeats_edges else "constant"

    def forward(self, x: Tensor) -> Tensor:
        missing = -x.shape[-1] % self.conv.stride[0]
        return self.conv(F.pad(x, (self.context, missing), mode=self.mode))


class ResnetBlock(nn.Module):
    def __init__(self, config: EncoderConfig, channels: int, dilation: int) -> None:
        super().__init__()
        inner = channels // config.compress
        self.block = nn.Sequential(
            nn.ELU(),
            StridedConv(channels, inner, config.residual_kernel_size, dilation=dilation),
            nn.ELU(),
            StridedConv(inner, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class ConvEncoder(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        channels = config.num_filters
        layers: list[nn.Module] = [StridedConv(config.audio_channels, channels, config.kernel_size)]
        for ratio in reversed(config.upsampling_ratios):
            layers += [
                ResnetBlock(config, channels, config.dilation_growth_rate**index)
                for index in range(config.num_residual_layers)
            ]
            layers += [nn.ELU(), StridedConv(channels, 2 * channels, 2 * ratio, stride=ratio)]
            channels *= 2
        layers += [nn.ELU(), StridedConv(channels, config.hidden_size, config.last_kernel_size)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class EncoderAttention(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = rotate(self.q_proj(x).unflatten(-1, (self.heads, self.head_dim)), cos, sin)
        k = rotate(self.k_proj(x).unflatten(-1, (self.kv_heads, self.head_dim)), cos, sin)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class EncoderMLP(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class EncoderLayer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.self_attn = EncoderAttention(config)
        self.mlp = EncoderMLP(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class EncoderTransformer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.head_dim, self.theta = config.head_dim, config.rope_theta
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H)."""
        tables = Rope(self.head_dim, self.theta, x.shape[1])
        cos, sin = (table.unsqueeze(1).to(x.device) for table in (tables.cos, tables.sin))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


class SpeechEncoder(nn.Module):
    """Audio to codes.

    Args:
        config: of the encoder.
        groups: codebooks that are used, the first ones.
    """

    def __init__(self, config: EncoderConfig, groups: int) -> None:
        super().__init__()
        self.hop, self.groups = 2 * config.hop, groups
        self.encoder = ConvEncoder(config)
        self.encoder_transformer = EncoderTransformer(config)
        self.downsample = StridedConv(
            config.hidden_size, config.hidden_size, 4, stride=2, bias=False, repeats_edges=True
        )
        self.quantizer = EncoderQuantizer(config)

    @torch.no_grad()
    def forward(self, audio: Tensor) -> Tensor:
        """Audio (B, N), N >= 1 -> codes (B, ceil(N / hop), groups) int64."""
        x = self.encoder(audio.unsqueeze(1))
        x = self.downsample(self.encoder_transformer(x.transpose(1, 2)).transpose(1, 2))
        frames = math.ceil(audio.shape[-1] / self.hop)
        return self.quantizer.encode(x, self.groups)[:, :frames]
