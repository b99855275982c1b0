"""Exact streaming for the AudioVAE's decoder: each frame is decoded once, and no seam exists.

A causal convolution needs the last frames of its input and nothing else of the past. Those frames, of all
convolutions of one stream, lie side by side in one row of a buffer (the stream's slot), so a step gathers
and scatters whole rows, once.

Inside, tensors are (B, T, C): a pointwise convolution is then one matrix product, and so is an upsampling
convolution, whose two input frames are neighbours in memory and whose output samples come out in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .audio_vae import (
    SNAKE_EPS,
    AudioVAE,
    CausalConv,
    CausalUpsample,
    DecoderBlock,
    RateCondition,
    ResidualUnit,
    Snake,
    check_latents,
)
from .captured_step import CapturedStep, Step

# From this many input values on, a depthwise convolution is faster than shifted multiply-adds. Only on a CPU:
# cuDNN may compute it in TF32.
MIN_DEPTHWISE_CONVOLUTION = 32768

# layer(x (B, T, C), rows (B, floats)) -> (B, T', C'): reads its part of `rows`, then renews it in place.
Layer = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class DecoderState:
    """What the streams' past has left: ``rows[i]`` belongs to slot i, and is zero where a stream begins.

    Attributes:
        rows: (slots, floats), dtype of the decoder.
    """

    rows: Tensor


class StreamingDecoder:
    """Decodes latents chunk by chunk; the chunks together are what `AudioVAE.decode` gives at once.

    Build it when `vae` is loaded and in its place: it holds weights arranged anew, in part copies.

    Args:
        vae: float32 (or float64), on the device where decoding shall happen.
        unit: None decodes a call in one go; how a stream is cut then changes the last bits of its samples
            (below 1e-6), since sums of different shapes are ordered differently. A number of frames decodes
            each row alone and in pieces of `unit` frames: samples are the same bit for bit, however the
            stream is cut and whoever else is in the batch.

    Raises:
        ValueError: `vae` is in half precision, or `unit` is less than 1.
    """

    def __init__(self, vae: AudioVAE, unit: int | None = None) -> None:
        weight = next(vae.decoder.parameters())
        if weight.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"vae is {weight.dtype}, streaming needs torch.float32 or torch.float64")
        if unit is not None and unit < 1:
            raise ValueError(f"unit is {unit}, expected at least 1 frame")
        self.unit = unit
        self.latent_dim = vae.config.latent_dim
        self.hop = vae.decoder_hop
        self.device, self.dtype = weight.device, weight.dtype
        plan = _Plan()
        with torch.no_grad():
            plan.add_decoder(vae)
        self._layers = plan.layers
        self.floats_per_slot = plan.floats
        self._unit_step: Step = self.step
        if unit is not None and self.device.type == "cuda":
            latents = torch.zeros(1, self.latent_dim, unit, dtype=self.dtype, device=self.device)
            with torch.no_grad():
                self._unit_step = CapturedStep(self.step, latents, self.new_state(1).rows)

    def new_state(self, slots: int) -> DecoderState:
        """State for `slots` streams at once, all about to begin."""
        shape = (slots, self.floats_per_slot)
        return DecoderState(torch.zeros(shape, dtype=self.dtype, device=self.device))

    def reset(self, state: DecoderState, slots: Tensor) -> None:
        """Lets new streams begin in `slots` (B,) int64."""
        state.rows[slots] = 0.0

    @torch.no_grad()
    def decode(self, latents: Tensor, state: DecoderState, slots: Tensor) -> Tensor:
        """The next T frames of B streams: latents (B, D, T) -> audio (B, T * hop) in [-1, 1].

        Args:
            latents: dtype of `vae`; T >= 1, a multiple of `unit` if there is one.
            state: changed in the rows of `slots` and nowhere else.
            slots: (B,) int64, where each stream's state lies. Rows that only pad a batch may share a slot
                that no stream uses.

        Raises:
            ValueError: a shape does not fit.
        """
        check_latents(latents, self.latent_dim)
        if slots.shape != latents.shape[:1]:
            raise ValueError(f"slots has shape {tuple(slots.shape)}, latents has {latents.shape[0]} rows")
        rows = state.rows[slots]
        audio = self.step(latents, rows) if self.unit is None else self._in_units(latents, rows, self.unit)
        state.rows.index_copy_(0, slots, rows)
        return audio

    def step(self, latents: Tensor, rows: Tensor) -> Tensor:
        """`decode` without the slots: advances `rows` (B, floats_per_slot) in place."""
        x = latents.transpose(1, 2)
        for layer in self._layers:
            x = layer(x, rows)
        return x.squeeze(-1)

    def _in_units(self, latents: Tensor, rows: Tensor, unit: int) -> Tensor:
        batch, _, frames = latents.shape
        if frames % unit:
            raise ValueError(f"latents has {frames} frames, expected a multiple of the unit ({unit})")
        audio = latents.new_empty(batch, frames * self.hop)
        for i in range(batch):
            for start in range(0, frames, unit):
                piece = self._unit_step(latents[i : i + 1, :, start : start + unit], rows[i : i + 1])
                audio[i, start * self.hop : (start + unit) * self.hop] = piece[0]
        return audio


class _Plan:
    """The decoder's layers in order, and where in a row each keeps its past."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.floats = 0

    def add_decoder(self, vae: AudioVAE) -> None:
        decoder = vae.decoder
        bucket = decoder.bucket(vae.config.out_sample_rate)
        for i, module in enumerate(decoder.model):
            if bucket is not None and str(i) in decoder.sr_cond_model:
                condition = decoder.sr_cond_model[str(i)]
                assert isinstance(condition, RateCondition)
                self.add_condition(condition, bucket)
            self.add(module)

    def add(self, module: nn.Module) -> None:
        if isinstance(module, DecoderBlock | nn.Sequential):
            for part in module.block if isinstance(module, DecoderBlock) else module:
                self.add(part)
        elif isinstance(module, ResidualUnit):
            branch = _Plan()
            branch.floats = self.floats
            branch.add(module.block)
            self.floats = branch.floats
            self.layers.append(_Residual(branch.layers))
        elif isinstance(module, CausalUpsample):
            self.layers.append(self.upsample(module))
        elif isinstance(module, CausalConv):
            depthwise = module.groups > 1
            self.layers.append(self.depthwise(module) if depthwise else self.dense(module))
        elif isinstance(module, Snake):
            self.layers.append(_SnakeLayer(module.alpha.detach().flatten()))
        elif isinstance(module, nn.Tanh):
            self.layers.append(_tanh)
        elif not isinstance(module, nn.Identity):
            raise TypeError(f"no streaming form of {type(module).__name__}")

    def add_condition(self, condition: RateCondition, bucket: Tensor) -> None:
        if condition.cond_type in ("scale_bias", "scale_bias_init"):
            self.layers.append(_Affine(condition.scale_embed(bucket)[0], condition.bias_embed(bucket)[0]))
        else:
            embedding = condition.cond_embed(bucket)[0].detach()
            self.layers.append(_Add(embedding) if condition.cond_type == "add" else _Append(embedding))
        self.add(condition.out_layer)

    def past(self, frames: int, channels: int) -> _Past:
        start = self.floats
        self.floats += frames * channels
        return _Past(start, self.floats, frames, channels)

    def depthwise(self, module: CausalConv) -> Layer:
        past = self.past(module.context, module.in_channels)
        return _Depthwise(module.weight.detach(), _bias(module), module.dilation[0], past)

    def dense(self, module: CausalConv) -> Layer:
        taps, dilation = module.kernel_size[0], module.dilation[0]
        if module.out_channels == 1 and taps > 1:
            past = self.past(module.context, module.in_channels)
            return _Output(module.weight.detach(), _bias(module), dilation, past)
        weight = module.weight.detach().permute(0, 2, 1).flatten(1).contiguous()
        past = self.past(module.context, module.in_channels)
        return _Dense(weight, _bias(module), taps, dilation, past)

    def upsample(self, module: CausalUpsample) -> Layer:
        stride = module.stride[0]
        current, previous = torch.split(module.weight.detach(), stride, dim=2)  # each (C, C', stride)
        # Rows are (sample within the frame, channel), columns the previous frame and then the current.
        weight = torch.cat([previous, current]).permute(2, 1, 0).flatten(0, 1).contiguous()
        past = self.past(1, module.in_channels)
        return _Upsample(_Dense(weight, _bias(module).repeat(stride), 2, 1, past), module.out_channels)


def _bias(module: nn.Conv1d | nn.ConvTranspose1d) -> Tensor:
    assert module.bias is not None
    return module.bias.detach()


def _tanh(x: Tensor, rows: Tensor) -> Tensor:
    return torch.tanh(x)


@dataclass(frozen=True, slots=True)
class _Past:
    """Where one layer's last input frames lie in a row."""

    start: int
    end: int
    frames: int
    channels: int

    def join(self, x: Tensor, rows: Tensor) -> Tensor:
        """x (B, T, C) -> (B, frames + T, C); keeps the last `frames` for next time, also when T is less."""
        kept = rows[:, self.start : self.end].view(rows.shape[0], self.frames, self.channels)
        joined = torch.cat([kept, x], dim=1)
        kept.copy_(joined[:, x.shape[1] :])
        return joined


class _SnakeLayer:
    def __init__(self, alpha: Tensor) -> None:
        self.alpha = alpha
        self.inverse = 1.0 / (alpha + SNAKE_EPS)

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        wave = (x * self.alpha).sin_()
        return torch.addcmul(x, wave.square_(), self.inverse)


class _Depthwise:
    """One filter for each channel: (B, T, C) -> (B, T, C)."""

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int, past: _Past) -> None:
        self.weight = weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)  # (C, 1, 1, taps)
        self.taps = list(weight[:, 0].t().contiguous())
        self.bias, self.dilation, self.past = bias, dilation, past

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        frames = x.shape[1]
        x = self.past.join(x, rows)
        if x.device.type == "cpu" and x.numel() >= MIN_DEPTHWISE_CONVOLUTION:
            # (B, T, C) is a channels-last image of height 1; the two transpositions only rename dimensions.
            image = x.transpose(1, 2).unsqueeze(2)
            out = F.conv2d(image, self.weight, self.bias, dilation=(1, self.dilation), groups=x.shape[2])
            return out.squeeze(2).transpose(1, 2)
        out = torch.addcmul(self.bias, x[:, :frames], self.taps[0])
        for k in range(1, len(self.taps)):
            start = k * self.dilation
            out.addcmul_(x[:, start : start + frames], self.taps[k])
        return out


class _Dense:
    """A convolution over all channels as one matrix product: (B, T, C) -> (B, T, C')."""

    def __init__(self, weight: Tensor, bias: Tensor, taps: int, dilation: int, past: _Past) -> None:
        self.weight, self.bias = weight, bias  # (C', taps * C), (C',)
        self.taps, self.dilation, self.past = taps, dilation, past

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        if self.taps > 1:
            batch, frames, channels = x.shape
            x = self.past.join(x, rows)
            strides = (x.stride(0), channels, self.dilation * channels, 1)
            x = x.as_strided((batch, frames, self.taps, channels), strides).flatten(2)
        return F.linear(x, self.weight, self.bias)


class _Output:
    """A convolution to one channel: (B, T, C) -> (B, T, 1).

    Each input frame is weighed once for all taps, which spares copying it once for each.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int, past: _Past) -> None:
        self.weight, self.bias = weight[0].t().contiguous(), bias  # (taps, C), (1,)
        self.dilation, self.past = dilation, past

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        taps, frames = self.weight.shape[0], x.shape[1]
        weighed = F.linear(self.past.join(x, rows), self.weight)
        strides = (weighed.stride(0), taps, self.dilation * taps + 1)
        return weighed.as_strided((x.shape[0], frames, taps), strides).sum(2, keepdim=True).add_(self.bias)


class _Upsample:
    """(B, T, C) -> (B, T * stride, C')."""

    def __init__(self, dense: _Dense, channels: int) -> None:
        self.dense, self.channels = dense, channels

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.dense(x, rows).view(x.shape[0], -1, self.channels)


class _Residual:
    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        branch = x
        for layer in self.layers:
            branch = layer(branch, rows)
        return branch.add_(x)


class _Affine:
    def __init__(self, scale: Tensor, bias: Tensor) -> None:
        self.scale, self.bias = scale.detach(), bias.detach()

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        return torch.addcmul(self.bias, x, self.scale)


class _Add:
    def __init__(self, embedding: Tensor) -> None:
        self.embedding = embedding

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        return x + self.embedding


class _Append:
    def __init__(self, embedding: Tensor) -> None:
        self.embedding = embedding

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([x, self.embedding.expand(*x.shape[:2], -1)], dim=2)
