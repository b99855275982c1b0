"""From the AudioVAE's decoder to the streaming decoder's list of layers, here the plain ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..streaming_layers import (
    Add,
    Affine,
    Append,
    Dense,
    Depthwise,
    Layer,
    Output,
    Past,
    Residual,
    SnakeLayer,
    Upsample,
    tanh,
)
from .audio_vae import SNAKE_EPS, AudioVAE, CausalConv, CausalUpsample, DecoderBlock, RateCondition, ResidualUnit, Snake


class Plan:
    """The decoder's layers in order, and where in a row each keeps its past."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.floats = 0

    def add_decoder(self, vae: AudioVAE) -> None:
        decoder = vae.decoder
        bucket = decoder.bucket(vae.config.out_sample_rate)
        *body, snake, convolution, _ = decoder.model
        for i, module in enumerate(body):
            if bucket is not None and str(i) in decoder.sr_cond_model:
                condition = decoder.sr_cond_model[str(i)]
                assert isinstance(condition, RateCondition)
                self.add_condition(condition, bucket)
                self.add(condition.out_layer)
            self.add(module)
        assert isinstance(snake, Snake)
        assert isinstance(convolution, CausalConv)
        self.add_output(snake, convolution)

    def add(self, module: nn.Module) -> None:
        if isinstance(module, DecoderBlock | nn.Sequential):
            for part in module.block if isinstance(module, DecoderBlock) else module:
                self.add(part)
        elif isinstance(module, ResidualUnit):
            branch = Plan()
            branch.floats = self.floats
            branch.add(module.block)
            self.floats = branch.floats
            self.layers.append(Residual(branch.layers))
        elif isinstance(module, CausalUpsample):
            self.layers.append(self.upsample(module))
        elif isinstance(module, CausalConv):
            self.layers.append(self.convolution(module))
        elif isinstance(module, Snake):
            self.layers.append(snake_layer(module))
        elif not isinstance(module, nn.Identity):
            raise TypeError(f"no streaming form of {type(module).__name__}")

    def add_condition(self, condition: RateCondition, bucket: Tensor) -> None:
        """Everything of a rate condition but its `out_layer`."""
        if condition.cond_type in ("scale_bias", "scale_bias_init"):
            self.layers.append(Affine(condition.scale_embed(bucket)[0], condition.bias_embed(bucket)[0]))
        else:
            embedding = condition.cond_embed(bucket)[0].detach()
            self.layers.append(Add(embedding) if condition.cond_type == "add" else Append(embedding))

    def add_output(self, snake: Snake, convolution: CausalConv) -> None:
        self.add(snake)
        self.layers += [self.output(convolution), tanh]

    def past(self, frames: int, channels: int) -> Past:
        start = self.floats
        self.floats += frames * channels
        return Past(start, self.floats, frames, channels)

    def convolution(self, module: CausalConv) -> Layer:
        if module.groups > 1:
            return self.depthwise(module)
        return self.output(module) if module.out_channels == 1 and module.context else self.dense(module)

    def depthwise(self, module: CausalConv) -> Depthwise:
        past = self.past(module.context, module.in_channels)
        return Depthwise(module.weight.detach(), bias_of(module), module.dilation[0], past)

    def dense(self, module: CausalConv) -> Dense:
        taps, dilation = module.kernel_size[0], module.dilation[0]
        weight = module.weight.detach().permute(0, 2, 1).flatten(1).contiguous()
        past = self.past(module.context, module.in_channels)
        return Dense(weight, bias_of(module), taps, dilation, past)

    def output(self, module: CausalConv) -> Output:
        past = self.past(module.context, module.in_channels)
        return Output(module.weight.detach(), bias_of(module), module.dilation[0], past)

    def upsample(self, module: CausalUpsample) -> Upsample:
        past = self.past(1, module.in_channels)
        bias = bias_of(module).repeat(module.stride[0])
        return Upsample(Dense(upsampling_weight(module), bias, 2, 1, past), module.out_channels)


def bias_of(module: nn.Conv1d | nn.ConvTranspose1d) -> Tensor:
    assert module.bias is not None
    return module.bias.detach()


def snake_layer(module: Snake) -> SnakeLayer:
    alpha = module.alpha.detach().flatten()
    return SnakeLayer(alpha, 1.0 / (alpha + SNAKE_EPS))


def upsampling_weight(module: CausalUpsample) -> Tensor:
    """(stride * C', 2 C): rows are (sample within the frame, channel), columns the previous frame, then the current."""
    current, previous = torch.split(module.weight.detach(), module.stride[0], dim=2)  # each (C, C', stride)
    return torch.cat([previous, current]).permute(2, 1, 0).flatten(0, 1).contiguous()
