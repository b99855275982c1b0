"""Exact streaming for the speech decoder: each frame is decoded once, and no seam exists.

The decoder is causal: a convolution needs the last frames of its input, the transformer the keys and values of its
window. All of one stream's lie side by side in one row of a buffer (the stream's slot), so a step gathers and
scatters whole rows, once.

Keys are kept unturned, and turned by their places within the window: positions do not grow with the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..streaming_layers import Dense, Depthwise, Layer, Output, Past, Residual, SnakeLayer, Upsample
from .quantizer import look_up
from .speech_decoder import (
    CausalConv,
    CausalUpsample,
    ConvNeXtBlock,
    DecoderBlock,
    ResidualUnit,
    SnakeBeta,
    SpeechDecoder,
    TransformerLayer,
    frame_rope,
)

MOST_FRAMES = 256
"""Frames decoded in one step; longer pieces are several."""


class Apply:
    """A function of each frame alone."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        return self.function(x)


class WindowLayers:
    """The transformer's layers over the windows of their streams."""

    def __init__(self, layers: list[tuple[TransformerLayer, Past, Past]], filled: Past, decoder: SpeechDecoder) -> None:
        config = decoder.config
        self.layers, self.filled, self.kept = layers, filled, config.sliding_window - 1
        device = decoder.pre_conv.conv.weight.device
        self.rope = frame_rope(config, self.kept + MOST_FRAMES, device)

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        count = x.shape[1]
        span = self.kept + count
        cos, sin = self.rope
        key = torch.arange(span, device=x.device)
        query = torch.arange(count, device=x.device).unsqueeze(1)
        filled = self.filled.of(old)
        # Query t is frame kept + t of the span, and its window begins at frame t. What no frame has filled yet is none.
        window = (key >= query) & (key <= query + self.kept)
        mask = (window & (key >= self.kept - filled)).unsqueeze(1)
        for layer, keys, values in self.layers:
            normed, attention = layer.input_layernorm(x), layer.self_attn
            k = keys.join(attention.k_proj(normed), old, rows)
            v = values.join(attention.v_proj(normed), old, rows)
            mixed = attention(attention.q_proj(normed), k, v, (cos[:span], sin[:span]), mask)
            x = layer.add_mlp(x + layer.self_attn_layer_scale(mixed))
        self.filled.of(rows).copy_((filled + count).clamp(max=self.kept))
        return x


@dataclass(frozen=True)
class DecoderState:
    """What the streams' past has left: ``rows[i]`` (fp32) belongs to slot i, and is zero where a stream begins."""

    rows: Tensor


class StreamingDecoder:
    """Decodes frames chunk by chunk; the chunks together are what ``SpeechDecoder`` gives at once.

    How a stream is cut, and who else is in the batch, changes the last bits of its samples, since sums of different
    shapes are ordered differently. Calls of one shape throughout give the same bits.

    Args:
        decoder: float32, loaded and on its device: its weights are held, in part as copies arranged anew.

    Raises:
        ValueError: ``decoder`` is in half precision.
    """

    def __init__(self, decoder: SpeechDecoder) -> None:
        weight = decoder.pre_conv.conv.weight
        if weight.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"decoder is {weight.dtype}, streaming needs torch.float32 or torch.float64")
        self.groups = decoder.config.num_quantizers
        self.hop = decoder.config.hop
        self.device, self.dtype = weight.device, weight.dtype
        self.floats_per_slot = 0
        with torch.no_grad():
            self._tables = decoder.quantizer.tables()
            self._layers = self._plan(decoder)

    def new_state(self, slots: int) -> DecoderState:
        """State for ``slots`` streams at once, all about to begin."""
        return DecoderState(torch.zeros(slots, self.floats_per_slot, dtype=self.dtype, device=self.device))

    @torch.no_grad()
    def decode(self, codes: Tensor, state: DecoderState, slots: Tensor) -> Tensor:
        """The next T frames of B streams: codes (B, T, G) int64 -> audio (B, T * hop) in [-1, 1].

        Args:
            codes: those out of range are clamped; T may be 0.
            state: changed in the rows of ``slots`` and nowhere else.
            slots: (B,) int64, where each stream's state lies. Rows that only pad a batch may share a slot
                that no stream uses.

        Raises:
            ValueError: a shape does not fit.
        """
        if codes.dim() != 3 or codes.shape[2] != self.groups or slots.shape != codes.shape[:1]:
            raise ValueError(
                f"codes are {tuple(codes.shape)} and slots {tuple(slots.shape)}, must be (B, T, {self.groups}) and (B,)"
            )
        if not codes.shape[1]:
            return torch.zeros(len(codes), 0, dtype=self.dtype, device=self.device)
        rows = state.rows[slots]
        audio = torch.cat([self._step(piece, rows) for piece in torch.split(codes, MOST_FRAMES, dim=1)], dim=1)
        state.rows.index_copy_(0, slots, rows)
        return audio

    def _step(self, codes: Tensor, rows: Tensor) -> Tensor:
        x = look_up(self._tables, codes)
        for layer in self._layers:
            x = layer(x, rows, rows)
        return x.squeeze(-1).clamp(-1, 1)

    def _plan(self, decoder: SpeechDecoder) -> list[Layer]:
        transformer = decoder.pre_transformer
        width = decoder.config.num_key_value_heads * decoder.config.head_dim
        kept = decoder.config.sliding_window - 1
        windows = []
        for layer in transformer.layers:
            assert isinstance(layer, TransformerLayer)
            windows.append((layer, self._past(kept, width), self._past(kept, width)))
        layers: list[Layer] = [
            self._convolution(decoder.pre_conv),
            Apply(transformer.input_proj),
            WindowLayers(windows, self._past(1, 1), decoder),
            Apply(transformer.norm),
            Apply(transformer.output_proj),
        ]
        for module in [*(part for stage in decoder.upsample for part in stage.children()), *decoder.decoder]:
            layers += self._streaming(module)
        return layers

    def _streaming(self, module: torch.nn.Module) -> list[Layer]:
        if isinstance(module, DecoderBlock):
            return [layer for part in module.block for layer in self._streaming(part)]
        if isinstance(module, ResidualUnit):
            parts = (module.act1, module.conv1, module.act2, module.conv2)
            return [Residual([layer for part in parts for layer in self._streaming(part)])]
        if isinstance(module, ConvNeXtBlock):
            return [Residual([self._convolution(module.dwconv), Apply(module.mix)])]
        if isinstance(module, CausalUpsample):
            return [self._upsample(module)]
        if isinstance(module, CausalConv):
            return [self._convolution(module)]
        if isinstance(module, SnakeBeta):
            return [SnakeLayer(*module.factors())]
        raise TypeError(f"no streaming form of {type(module).__name__}")

    def _past(self, frames: int, channels: int) -> Past:
        start = self.floats_per_slot
        self.floats_per_slot += frames * channels
        return Past(start, self.floats_per_slot, frames, channels)

    def _convolution(self, module: CausalConv) -> Layer:
        conv = module.conv
        assert conv.bias is not None
        weight, bias, dilation = conv.weight.detach(), conv.bias.detach(), conv.dilation[0]
        past = self._past(module.context, conv.in_channels)
        if conv.groups > 1:
            return Depthwise(weight, bias, dilation, past)
        if conv.out_channels == 1:
            return Output(weight, bias, dilation, past)
        flat = weight.permute(0, 2, 1).flatten(1).contiguous()
        return Dense(flat, bias, conv.kernel_size[0], dilation, past)

    def _upsample(self, module: CausalUpsample) -> Upsample:
        conv, stride = module.conv, module.stride
        assert conv.bias is not None
        # (C, C', taps) in pieces of a stride: of the current frame first, then of those before it.
        pieces = torch.split(conv.weight.detach(), stride, dim=2)
        past = self._past(len(pieces) - 1, conv.in_channels)
        flat = torch.cat(pieces[::-1]).permute(2, 1, 0).flatten(0, 1).contiguous()
        dense = Dense(flat, conv.bias.detach().repeat(stride), len(pieces), 1, past)
        return Upsample(dense, conv.out_channels)
