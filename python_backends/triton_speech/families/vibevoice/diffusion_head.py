"""The network that predicts the velocity of a noisy latent, under the checkpoint's names."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..decoder_layers import GatedMLP, RMSNorm
from .config import HeadConfig

FREQUENCIES = 256
PERIOD = 10000


class TimeEmbedding(nn.Module):
    """Timesteps (B,) -> (B, H): sinusoids as of Ho et al. 2020 (arXiv 2006.11239), then two projections."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(FREQUENCIES, hidden_size, bias=False), nn.SiLU(), nn.Linear(hidden_size, hidden_size, bias=False)
        )

    def forward(self, timesteps: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        rates = torch.exp(-math.log(PERIOD) / half * torch.arange(half, device=timesteps.device).float())
        angles = timesteps.float().unsqueeze(-1) * rates
        return self.mlp(torch.cat((angles.cos(), angles.sin()), dim=-1).to(next(self.parameters()).dtype))


class HeadLayer(nn.Module):
    """A gated network whose input and output are modulated by the condition (adaLN, arXiv 2212.09748)."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.ffn = GatedMLP(size, int(size * config.head_ffn_ratio))
        self.norm = RMSNorm(size, config.rms_norm_eps)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(size, 3 * size, bias=False))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN_modulation(condition).chunk(3, dim=-1)
        return x + gate * self.ffn(self.norm(x) * (1 + scale) + shift)


class FinalLayer(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.norm_final = RMSNorm(size, config.rms_norm_eps, affine=False)
        self.linear = nn.Linear(size, config.latent_size, bias=False)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(size, 2 * size, bias=False))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(condition).chunk(2, dim=-1)
        return self.linear(self.norm_final(x) * (1 + scale) + shift)


class DiffusionHead(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.noisy_images_proj = nn.Linear(config.latent_size, config.hidden_size, bias=False)
        self.cond_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.t_embedder = TimeEmbedding(config.hidden_size)
        self.layers = nn.ModuleList(HeadLayer(config) for _ in range(config.head_layers))
        self.final_layer = FinalLayer(config)

    def forward(self, latents: Tensor, timesteps: Tensor, condition: Tensor) -> Tensor:
        """Noisy latents (B, D) at timesteps (B,), under conditions (B, H) -> velocities (B, D)."""
        return self.velocity(latents, timesteps, self.cond_proj(condition))

    def velocity(self, latents: Tensor, timesteps: Tensor, projected: Tensor) -> Tensor:
        """The same for conditions that are projected already: they stay, step after step."""
        condition = projected + self.t_embedder(timesteps)
        x = self.noisy_images_proj(latents)
        for layer in self.layers:
            x = layer(x, condition)
        return self.final_layer(x, condition)


class Connector(nn.Module):
    """Features of a frame (..., D) -> a row that the language model reads (..., H)."""

    def __init__(self, features: int, hidden_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, hidden_size)
        self.norm = RMSNorm(hidden_size, 1e-6)
        self.fc2 = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.norm(self.fc1(x)))


def guided(conditional: Tensor, unconditional: Tensor, scale: Tensor) -> Tensor:
    """Classifier-free guidance (arXiv 2207.12598): (B, D) twice, scale (B,) -> (B, D)."""
    return torch.lerp(unconditional, conditional, scale.to(conditional.dtype).unsqueeze(1))
