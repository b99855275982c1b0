"""The speaker encoder under the names of its checkpoint: ECAPA-TDNN (arXiv 2005.07143) on mel spectra."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import SpeakerEncoderConfig

_EPSILON = 1e-12


class TimeDelay(nn.Module):
    """Convolution over mirrored edges, then ReLU: (B, C, T) -> (B, C', T)."""

    def __init__(self, channels: int, out: int, taps: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, out, taps, dilation=dilation, padding="same", padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """Parts of the channels, each hearing what became of the one before (arXiv 1904.01169)."""

    def __init__(self, channels: int, scale: int, taps: int, dilation: int) -> None:
        super().__init__()
        part = channels // scale
        self.blocks = nn.ModuleList(TimeDelay(part, part, taps, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = x.chunk(len(self.blocks) + 1, dim=1)
        parts = [first]
        for index, (part, block) in enumerate(zip(rest, self.blocks, strict=True)):
            parts.append(block(part if index == 0 else part + parts[-1]))
        return torch.cat(parts, dim=1)


class SqueezeExcitation(nn.Module):
    """Weighs channels by their means (arXiv 1709.01507)."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, inner, 1)
        self.conv2 = nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(x.mean(dim=2, keepdim=True)))))


class SERes2NetBlock(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig, channels: int, out: int, taps: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(channels, out, 1)
        self.res2net_block = Res2Net(out, config.enc_res2net_scale, taps, dilation)
        self.tdnn2 = TimeDelay(out, out, 1)
        self.se_block = SqueezeExcitation(out, config.enc_se_channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))


class AttentivePooling(nn.Module):
    """Weighted mean and deviation over time: (B, C, T) -> (B, 2 C, 1)."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, inner, 1)
        self.conv = nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        even = torch.full_like(x[:, :1], 1.0 / x.shape[2])
        whole = torch.cat((x, *(part.expand_as(x) for part in _statistics(x, even))), dim=1)
        weights = self.conv(torch.tanh(self.tdnn(whole))).softmax(dim=2)
        return torch.cat(_statistics(x, weights), dim=1)


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    mean = (weights * x).sum(2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(2, keepdim=True)
    return mean, variance.clamp(min=_EPSILON).sqrt()


class SpeakerEncoder(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        self.mel_dim = config.mel_dim
        channels, taps, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        middle = range(1, len(channels) - 1)
        self.blocks = nn.ModuleList(
            [
                TimeDelay(config.mel_dim, channels[0], taps[0], dilations[0]),
                *(
                    SERes2NetBlock(config, channels[index - 1], channels[index], taps[index], dilations[index])
                    for index in middle
                ),
            ]
        )
        self.mfa = TimeDelay(channels[-1], channels[-1], taps[-1], dilations[-1])
        self.asp = AttentivePooling(channels[-1], config.enc_attention_channels)
        self.fc = nn.Conv1d(2 * channels[-1], config.enc_dim, 1)

    def forward(self, mel: Tensor) -> Tensor:
        """Log mel spectra (B, frames, bands) -> speaker vectors (B, enc_dim)."""
        x, heard = mel.transpose(1, 2), []
        for block in self.blocks:
            x = block(x)
            heard.append(x)
        return self.fc(self.asp(self.mfa(torch.cat(heard[1:], dim=1)))).squeeze(-1)
