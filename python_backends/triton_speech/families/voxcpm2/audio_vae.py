"""The AudioVAE of VoxCPM2: 16 kHz speech to latent frames, latent frames to audio at the output rate.

Every convolution is causal, so audio depends on past frames only and can be decoded as a stream (see
`streaming_decoder`). Checkpoints hold weight-normalised pairs (``weight_g``, ``weight_v``); they are folded
into plain weights at load, since inference never changes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..shapes_only import shapes_only
from .config import AudioVAEConfig

KERNEL_SIZE = 7
DILATIONS = (1, 3, 9)
SNAKE_EPS = 1e-9


class Snake(nn.Module):
    """x + sin(alpha x)^2 / alpha with one alpha for each channel: (B, C, T) -> (B, C, T)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sin(self.alpha * x).square() / (self.alpha + SNAKE_EPS)


class CausalConv(nn.Conv1d):
    """A convolution with zeros before the first frame: (B, C, T) -> (B, C', T / stride)."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(channels_in, channels_out, kernel_size, stride=stride, dilation=dilation, groups=groups)
        self.context = (kernel_size - 1) * dilation - (stride - 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (self.context, 0)))


class CausalUpsample(nn.ConvTranspose1d):
    """A transposed convolution of kernel 2 * stride: (B, C, T) -> (B, C', T * stride).

    Each output sample is made of two frames, the one it lies in and the one before.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__(channels_in, channels_out, 2 * stride, stride=stride)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        # What the last frame adds after its own samples waits for a next frame, which never comes.
        return super().forward(x, output_size)[..., : x.shape[-1] * self.stride[0]]


class ResidualUnit(nn.Module):
    """Snake, dilated convolution, snake, pointwise convolution, and the input added: (B, C, T)."""

    def __init__(self, channels: int, dilation: int, depthwise: bool) -> None:
        super().__init__()
        groups = channels if depthwise else 1
        self.block = nn.Sequential(
            Snake(channels),
            CausalConv(channels, channels, KERNEL_SIZE, dilation=dilation, groups=groups),
            Snake(channels),
            CausalConv(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class EncoderBlock(nn.Module):
    """(B, C, T) -> (B, 2 C, T / stride)."""

    def __init__(self, channels: int, stride: int, depthwise: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(ResidualUnit(channels, dilation, depthwise) for dilation in DILATIONS),
            Snake(channels),
            CausalConv(channels, 2 * channels, 2 * stride, stride=stride),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class DecoderBlock(nn.Module):
    """(B, C, T) -> (B, C', T * stride)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, depthwise: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(channels_in),
            CausalUpsample(channels_in, channels_out, stride),
            *(ResidualUnit(channels_out, dilation, depthwise) for dilation in DILATIONS),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class RateCondition(nn.Module):
    """Tells a decoder block which bucket the output's sample rate falls in: (B, C, T) -> (B, C, T)."""

    def __init__(self, channels: int, buckets: int, config: AudioVAEConfig) -> None:
        super().__init__()
        self.cond_type = config.cond_type
        width = channels
        if config.cond_type in ("scale_bias", "scale_bias_init"):
            self.scale_embed = nn.Embedding(buckets, channels)
            self.bias_embed = nn.Embedding(buckets, channels)
            nn.init.ones_(self.scale_embed.weight)
            nn.init.zeros_(self.bias_embed.weight)
        elif config.cond_type == "add":
            self.cond_embed = nn.Embedding(buckets, channels)
        else:
            self.cond_embed = nn.Embedding(buckets, config.cond_dim)
            width = channels + config.cond_dim
        self.out_layer: nn.Module = nn.Identity()
        if config.cond_out_layer:
            self.out_layer = nn.Sequential(Snake(width), CausalConv(width, channels, 1))

    def forward(self, x: Tensor, bucket: Tensor) -> Tensor:
        if self.cond_type in ("scale_bias", "scale_bias_init"):
            x = x * self.scale_embed(bucket).unsqueeze(-1) + self.bias_embed(bucket).unsqueeze(-1)
        elif self.cond_type == "add":
            x = x + self.cond_embed(bucket).unsqueeze(-1)
        else:
            rate = self.cond_embed(bucket).unsqueeze(-1).expand(x.shape[0], -1, x.shape[-1])
            x = torch.cat([x, rate], dim=1)
        return self.out_layer(x)


class Encoder(nn.Module):
    """(B, 1, N) -> (B, D, N / hop), the mean of the latent distribution."""

    def __init__(self, config: AudioVAEConfig) -> None:
        super().__init__()
        channels = config.encoder_dim
        layers: list[nn.Module] = [CausalConv(1, channels, KERNEL_SIZE)]
        for stride in config.encoder_rates:
            layers.append(EncoderBlock(channels, stride, config.depthwise))
            channels *= 2
        self.block = nn.Sequential(*layers)
        self.fc_mu = CausalConv(channels, config.latent_dim, 3)
        # Training samples with the variance; inference takes the mean. Kept so that checkpoints load whole.
        self.fc_logvar = CausalConv(channels, config.latent_dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_mu(self.block(x))


class Decoder(nn.Module):
    """(B, D, T) -> (B, 1, T * hop), in [-1, 1]."""

    sr_bin_boundaries: Tensor | None

    def __init__(self, config: AudioVAEConfig) -> None:
        super().__init__()
        latent, channels = config.latent_dim, config.decoder_dim
        if config.depthwise:
            layers: list[nn.Module] = [
                CausalConv(latent, latent, KERNEL_SIZE, groups=latent),
                CausalConv(latent, channels, 1),
            ]
        else:
            layers = [CausalConv(latent, channels, KERNEL_SIZE)]
        conditions: dict[str, nn.Module] = {}
        for i, stride in enumerate(config.decoder_rates):
            channels_in, channels = config.decoder_dim >> i, config.decoder_dim >> (i + 1)
            if config.sr_bin_boundaries is not None:
                buckets = len(config.sr_bin_boundaries) + 1
                conditions[str(len(layers))] = RateCondition(channels_in, buckets, config)
            layers.append(DecoderBlock(channels_in, channels, stride, config.depthwise))
        layers += [Snake(channels), CausalConv(channels, 1, KERNEL_SIZE), nn.Tanh()]
        self.model = nn.ModuleList(layers)
        self.sr_cond_model = nn.ModuleDict(conditions)
        boundaries = config.sr_bin_boundaries
        self.register_buffer(
            "sr_bin_boundaries",
            None if boundaries is None else torch.tensor(boundaries, dtype=torch.int32),
        )

    def bucket(self, sample_rate: int) -> Tensor | None:
        """The bucket (1,) of `sample_rate` (Hz); None for a decoder that does not know rates."""
        if self.sr_bin_boundaries is None:
            return None
        rate = torch.tensor([sample_rate], device=self.sr_bin_boundaries.device)
        return torch.bucketize(rate, self.sr_bin_boundaries)

    def forward(self, x: Tensor, sample_rate: int) -> Tensor:
        bucket = self.bucket(sample_rate)
        for i, layer in enumerate(self.model):
            if bucket is not None and str(i) in self.sr_cond_model:
                x = self.sr_cond_model[str(i)](x, bucket)
            x = layer(x)
        return x


class AudioVAE(nn.Module):
    """Speech to latent frames and back; parameters are named as in a checkpoint, weight norm folded.

    Attributes:
        encoder_hop: input samples for each latent frame.
        decoder_hop: output samples for each latent frame.

    Raises:
        ValueError: the configuration cannot be built, or not for inference.
    """

    def __init__(self, config: AudioVAEConfig) -> None:
        super().__init__()
        _check(config)
        self.config = config
        self.encoder_hop = math.prod(config.encoder_rates)
        self.decoder_hop = math.prod(config.decoder_rates)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def encode(self, audio: Tensor) -> Tensor:
        """Audio (B, N) at ``config.sample_rate`` -> latents (B, D, ceil(N / encoder_hop)); zeros pad the end.

        Raises:
            ValueError: `audio` is not (B, N) or holds no samples.
        """
        if audio.dim() != 2 or audio.shape[1] == 0:
            raise ValueError(f"audio has shape {tuple(audio.shape)}, expected (B, N) with N > 0")
        padding = -audio.shape[1] % self.encoder_hop
        return self.encoder(F.pad(audio, (0, padding)).unsqueeze(1))

    def decode(self, latents: Tensor, sample_rate: int | None = None) -> Tensor:
        """Latents (B, D, T) -> audio (B, T * decoder_hop) in [-1, 1] at ``config.out_sample_rate``.

        Args:
            latents: what `encode` or the talker made.
            sample_rate: rate in Hz that the decoder is told; by default ``config.out_sample_rate``. The
                number of samples does not depend on it.

        Raises:
            ValueError: `latents` is not (B, D, T) with T > 0.
        """
        check_latents(latents, self.config.latent_dim)
        return self.decoder(latents, sample_rate or self.config.out_sample_rate).squeeze(1)


def check_latents(latents: Tensor, latent_dim: int) -> None:
    """Raises ValueError unless `latents` is (B, latent_dim, T) with T > 0."""
    if latents.dim() != 3 or latents.shape[1] != latent_dim or latents.shape[2] == 0:
        raise ValueError(f"latents has shape {tuple(latents.shape)}, expected (B, {latent_dim}, T) with T > 0")


def _check(config: AudioVAEConfig) -> None:
    if config.use_noise_block:
        raise ValueError(
            "use_noise_block is true: not supported at inference: its noise would make the samples "
            "depend on how a stream is cut into chunks"
        )
    for name in ("encoder_rates", "decoder_rates"):
        rates = getattr(config, name)
        if not rates or min(rates) < 1:
            raise ValueError(f"{name} is {rates}, expected one or more rates of at least 1")
    smallest = 2 ** len(config.decoder_rates)
    if config.decoder_dim < smallest:
        raise ValueError(
            f"decoder_dim is {config.decoder_dim}, at least {smallest} is needed: "
            f"each of the {len(config.decoder_rates)} decoder_rates halves the channels"
        )
    if config.sr_bin_boundaries is not None and config.cond_type == "concat" and not config.cond_out_layer:
        raise ValueError("cond_out_layer is false, cond_type 'concat' needs it to be true")


def fold_weight_norm(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replaces each pair ``weight_g``, ``weight_v`` by ``weight``; half precision becomes float32 first.

    The norm runs over all dimensions but the first, for transposed convolutions too (there the first is
    the input channel). Other tensors keep their values.

    Raises:
        ValueError: one half of a pair is missing.
    """
    folded: dict[str, Tensor] = {}
    for name, tensor in state_dict.items():
        stem, kind = name[:-1], name.rpartition(".")[2]
        other = {"weight_v": stem + "g", "weight_g": stem + "v"}.get(kind)
        if other is not None and other not in state_dict:
            raise ValueError(f"the checkpoint has {name} but no {other}")
        value = tensor.float() if tensor.is_floating_point() else tensor
        if other is None:
            folded[name] = value
        elif kind == "weight_v":
            folded[name[:-2]] = torch._weight_norm(value, state_dict[other].float(), 0)
    return folded


def unfold_weight_norm(state_dict: Mapping[str, Tensor], vae: AudioVAE) -> dict[str, Tensor]:
    """The inverse of `fold_weight_norm` for the convolutions of `vae`: the form that checkpoints have."""
    convolutions = _convolution_weights(vae)
    unfolded: dict[str, Tensor] = {}
    for name, tensor in state_dict.items():
        if name in convolutions:
            unfolded[f"{name}_g"] = tensor.float().flatten(1).norm(dim=1).view(-1, 1, 1).to(tensor.dtype)
            unfolded[f"{name}_v"] = tensor
        else:
            unfolded[name] = tensor
    return unfolded


def checkpoint_tensors(config: AudioVAEConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of an AudioVAE checkpoint; allocates nothing."""
    with shapes_only():
        vae = AudioVAE(config)
    convolutions = _convolution_weights(vae)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in vae.state_dict().items():
        if name in convolutions:
            shapes |= {f"{name}_g": (len(tensor), 1, 1), f"{name}_v": tuple(tensor.shape)}
        else:
            shapes[name] = tuple(tensor.shape)
    return shapes


def _convolution_weights(vae: AudioVAE) -> set[str]:
    modules = vae.named_modules()
    return {f"{name}.weight" for name, module in modules if isinstance(module, nn.Conv1d | nn.ConvTranspose1d)}
