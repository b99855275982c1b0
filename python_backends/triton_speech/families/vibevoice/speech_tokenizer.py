"""Audio to the features of frames and back, under the checkpoint's names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import KERNEL, TokenizerConfig
from .speech_layers import Block, CausalConv, CausalUpsample, reserve


class Coder(nn.Module):
    """What encoder and decoder have in common: rows of state, and pieces of a signal."""

    floats: int
    """Of a stream's row."""

    def run(self, x: Tensor, rows: Tensor) -> Tensor:
        raise NotImplementedError

    def new_rows(self, count: int) -> Tensor:
        """State (count, floats) of streams that are about to begin."""
        weight = next(self.parameters())
        return torch.zeros(count, self.floats, dtype=weight.dtype, device=weight.device)


class Encoder(Coder):
    """Samples (B, N) -> features of frames (B, T, D)."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        size = config.encoder_n_filters
        layers = [nn.ModuleList([CausalConv(1, size, KERNEL)])]
        for ratio in reversed(config.encoder_ratios):
            layers.append(nn.ModuleList([CausalConv(size, 2 * size, 2 * ratio, stride=ratio)]))
            size *= 2
        self.downsample_layers = nn.ModuleList(layers)
        self.stages = nn.ModuleList(
            nn.ModuleList(Block(config.encoder_n_filters * 2**stage, config) for _ in range(depth))
            for stage, depth in enumerate(config.encoder_depths)
        )
        self.head = CausalConv(size, config.vae_dim, KERNEL)
        self.floats = reserve(self)

    def forward(self, samples: Tensor) -> Tensor:
        """A whole recording; its last frame may be part silence."""
        return self.run(samples, self.new_rows(len(samples)))

    def run(self, x: Tensor, rows: Tensor) -> Tensor:
        """The next whole frames of streams: samples (B, N), N a multiple of the hop; changes rows (B, floats)."""
        x = x.unsqueeze(1)
        for layers, blocks in zip(self.downsample_layers, self.stages, strict=True):
            for part in (*layers.children(), *blocks.children()):
                x = part(x, rows)
        return self.head(x, rows).transpose(1, 2)


class Decoder(Coder):
    """Latents of frames (B, T, D) -> samples (B, T * hop)."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        size = config.decoder_filters * 2 ** len(config.upsampling)
        layers = [nn.ModuleList([CausalConv(config.vae_dim, size, KERNEL)])]
        stages = []
        for stage, depth in enumerate(config.decoder_blocks):
            if stage:
                layers.append(nn.ModuleList([CausalUpsample(size, size // 2, config.upsampling[stage - 1])]))
                size //= 2
            stages.append(nn.ModuleList(Block(size, config) for _ in range(depth)))
        self.upsample_layers, self.stages = nn.ModuleList(layers), nn.ModuleList(stages)
        self.head = CausalConv(size, 1, KERNEL)
        self.floats = reserve(self)

    def forward(self, latents: Tensor) -> Tensor:
        """All of a speech at once."""
        return self.run(latents, self.new_rows(len(latents)))

    def run(self, x: Tensor, rows: Tensor) -> Tensor:
        """The next frames of streams: latents (B, T, D), T at least 1; changes rows (B, floats)."""
        x = x.transpose(1, 2)
        for layers, blocks in zip(self.upsample_layers, self.stages, strict=True):
            for part in (*layers.children(), *blocks.children()):
                x = part(x, rows)
        return self.head(x, rows).squeeze(1)


class AcousticTokenizer(nn.Module):
    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(config), Decoder(config)


class SemanticTokenizer(nn.Module):
    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
