"""The streaming decoder's layers for a GPU: few kernels, and few passes of activations through memory.

Between two matrix products lies one kernel. Products have no bias: a bias is one number for each channel, so it waits
as an offset for the next layer that reads the activations, over residual sums too. That lets a residual unit's last
product add its result to the unit's input in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..streaming_layers import Add, Affine, Depthwise, Output, Past, SnakeLayer
from . import codec_ops
from .audio_vae import CausalConv, CausalUpsample, DecoderBlock, RateCondition, ResidualUnit, Snake
from .streaming_plan import Plan, bias_of, snake_layer, upsampling_weight


class FusedPlan(Plan):
    """A `Plan` whose state has the same layout; what has no fused form is as there."""

    def __init__(self) -> None:
        super().__init__()
        # What is still to be done to the last layer's output: x * scale + offset.
        self._scale: Tensor | None = None
        self._offset: Tensor | None = None

    def add(self, module: nn.Module) -> None:
        if isinstance(module, DecoderBlock):
            snake, upsample, *units = module.block
            assert isinstance(snake, Snake)
            assert isinstance(upsample, CausalUpsample)
            self.add_upsample(snake, upsample)
            for unit in units:
                self.add(unit)
        elif isinstance(module, ResidualUnit) and is_depthwise(module.block[1]):
            self.add_unit(module)
        elif isinstance(module, CausalConv) and is_depthwise(module):
            self.layers.append(DepthwiseLayer(self.offset(module.in_channels, module.weight), self.depthwise(module)))
        elif isinstance(module, CausalConv) and module.kernel_size[0] == 1:
            self.flush()
            self.layers.append(Product(pointwise_weight(module)))
            self._offset = bias_of(module)
        elif not isinstance(module, nn.Identity | nn.Sequential):
            self.flush()
            super().add(module)
        else:
            super().add(module)

    def add_condition(self, condition: RateCondition, bucket: Tensor) -> None:
        if condition.cond_type in ("scale_bias", "scale_bias_init"):
            scale, bias = condition.scale_embed(bucket)[0].detach(), condition.bias_embed(bucket)[0].detach()
            self._scale = scale if self._scale is None else self._scale * scale
            self._offset = bias if self._offset is None else self._offset * scale + bias
        elif condition.cond_type == "add":
            embedding = condition.cond_embed(bucket)[0].detach()
            self._offset = embedding if self._offset is None else self._offset + embedding
        else:
            self.flush()
            super().add_condition(condition, bucket)

    def add_upsample(self, snake: Snake, upsample: CausalUpsample) -> None:
        channels = upsample.in_channels
        scale = upsample.weight.new_ones(channels) if self._scale is None else self._scale
        self._scale = None
        offset = self.offset(channels, upsample.weight)
        weight, past = upsampling_weight(upsample), self.past(1, channels)
        self.layers.append(UpsampleLayer(scale, offset, snake_layer(snake), weight, upsample.out_channels, past))
        self._offset = bias_of(upsample)

    def add_unit(self, unit: ResidualUnit) -> None:
        before, convolution, after, pointwise = unit.block
        assert isinstance(before, Snake)
        assert isinstance(convolution, CausalConv)
        assert isinstance(after, Snake)
        assert isinstance(pointwise, CausalConv)
        offset, conv = self.offset(convolution.in_channels, convolution.weight), self.depthwise(convolution)
        branch = DepthwiseLayer(offset, conv, snake_layer(before), snake_layer(after))
        self.layers.append(UnitLayer(branch, pointwise_weight(pointwise)))
        # The sum is still without the offset of its one part and without the bias of the other.
        self._offset = offset + bias_of(pointwise)

    def add_output(self, snake: Snake, convolution: CausalConv) -> None:
        offset = self.offset(convolution.in_channels, convolution.weight)
        self.layers.append(OutputLayer(offset, snake_layer(snake), self.output(convolution)))

    def offset(self, channels: int, like: Tensor) -> Tensor:
        """Takes over what is to be added (C,), for a layer that does it."""
        if self._scale is not None:
            self.flush()
        offset = like.new_zeros(channels) if self._offset is None else self._offset
        self._offset = None
        return offset

    def flush(self) -> None:
        """Lets a layer of its own do what is still to be done."""
        if self._scale is not None:
            offset = torch.zeros_like(self._scale) if self._offset is None else self._offset
            self.layers.append(Affine(self._scale, offset))
        elif self._offset is not None:
            self.layers.append(Add(self._offset))
        self._scale = self._offset = None


def is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, CausalConv) and module.groups > 1


def pointwise_weight(module: CausalConv) -> Tensor:
    return module.weight.detach().squeeze(2)


@dataclass(frozen=True, slots=True)
class Product:
    """A pointwise convolution without its bias: (B, T, C) -> (B, T, C')."""

    weight: Tensor  # (C', C)

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        return x @ self.weight.t()


@dataclass(frozen=True, slots=True)
class DepthwiseLayer:
    """(B, T, C) -> (B, T, C)."""

    offset: Tensor
    conv: Depthwise
    before: SnakeLayer | None = None
    after: SnakeLayer | None = None

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        return codec_ops.depthwise(x, self.offset, self.before, self.conv, self.after, old, rows)


@dataclass(frozen=True, slots=True)
class UnitLayer:
    """A residual unit: (B, T, C) -> (B, T, C), in place, so x must be another layer's output."""

    branch: DepthwiseLayer
    weight: Tensor  # (C, C)

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        channels = x.shape[2]
        branch = self.branch(x, old, rows)
        x.view(-1, channels).addmm_(branch.view(-1, channels), self.weight.t())
        return x


@dataclass(frozen=True, slots=True)
class UpsampleLayer:
    """Snake and upsampling: (B, T, C) -> (B, T * stride, C')."""

    scale: Tensor
    offset: Tensor
    snake: SnakeLayer
    weight: Tensor  # (stride * C', 2 C)
    channels: int
    past: Past

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        pairs = codec_ops.snake_pairs(x, self.scale, self.offset, self.snake, self.past, old, rows)
        return (pairs @ self.weight.t()).view(x.shape[0], -1, self.channels)


@dataclass(frozen=True, slots=True)
class OutputLayer:
    """Snake, the convolution to one channel, tanh: (B, T, C) -> (B, T, 1)."""

    offset: Tensor
    snake: SnakeLayer
    conv: Output

    def __call__(self, x: Tensor, old: Tensor, rows: Tensor) -> Tensor:
        return codec_ops.snake_output(x, self.offset, self.snake, self.conv, old, rows)
