"""The codec's decoder and encoder as graphs: the streaming decoder's layers again, with nothing written in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
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
from .audio_vae import AudioVAE
from .streaming_plan import Plan


class _Pasts:
    """Reads each layer's past from the state and gathers what will be the next state, in the layers' order."""

    def __init__(self, state: Tensor) -> None:
        self._state = state
        self._renewed: list[Tensor] = []
        self._end = 0

    def join(self, past: Past, x: Tensor) -> Tensor:
        """x (B, T, C) -> (B, frames + T, C)."""
        if past.start != self._end:
            raise ValueError(f"a layer's past begins at {past.start}, the one before ends at {self._end}")
        self._end = past.end
        kept = self._state[:, past.start : past.end].reshape(-1, past.frames, past.channels)
        joined = torch.cat((kept, x), dim=1)
        self._renewed.append(joined[:, -past.frames :].flatten(1))
        return joined

    def renewed(self) -> Tensor:
        return torch.cat(self._renewed, dim=1)


class CodecStep(nn.Module):
    """``StreamingDecoder.step`` as a function: the state (B, floats) lies as it does there.

    Args:
        vae: float32; its weights are shared.
    """

    def __init__(self, vae: AudioVAE) -> None:
        super().__init__()
        plan = Plan()
        with torch.no_grad():
            plan.add_decoder(vae)
        self.layers, self.floats = plan.layers, plan.floats

    def forward(self, latents: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """latents (B, T, P, D), state (B, floats) -> audio (B, N), next state (B, floats)."""
        pasts = _Pasts(state)
        audio = _run_all(self.layers, latents.flatten(1, 2), pasts)
        return audio.squeeze(2), pasts.renewed()


class CodecDecode(nn.Module):
    """A whole utterance at once: a step of a stream that has no past."""

    def __init__(self, vae: AudioVAE) -> None:
        super().__init__()
        self.step = CodecStep(vae)

    def forward(self, latents: Tensor) -> Tensor:
        """latents (B, T, P, D) -> audio (B, N)."""
        audio, _ = self.step(latents, latents.new_zeros(latents.shape[0], self.step.floats))
        return audio


class ReferenceEncode(nn.Module):
    """Recordings to latents."""

    def __init__(self, vae: AudioVAE, patch_size: int) -> None:
        super().__init__()
        self.encoder, self.patch_size = vae.encoder, patch_size

    def forward(self, audio: Tensor) -> Tensor:
        """audio (B, T, S), S samples for each patch -> latents (B, T, P, D)."""
        latents = self.encoder(audio.flatten(1).unsqueeze(1)).transpose(1, 2)
        return latents.unflatten(1, (audio.shape[1], self.patch_size))


def _run_all(layers: Sequence[Layer], x: Tensor, pasts: _Pasts) -> Tensor:
    for layer in layers:
        x = _run(layer, x, pasts)
    return x


def _run(layer: Layer, x: Tensor, pasts: _Pasts) -> Tensor:
    """One layer of ``streaming_layers``: x (B, T, C) -> (B, T', C')."""
    frames = x.shape[1]
    if isinstance(layer, SnakeLayer):
        wave = torch.sin(x * layer.alpha)
        return x + wave * wave * layer.inverse
    if isinstance(layer, Residual):
        return _run_all(layer.layers, x, pasts) + x
    if isinstance(layer, Depthwise):
        joined = pasts.join(layer.past, x).transpose(1, 2)
        weight = layer.weight.squeeze(2).contiguous()
        return F.conv1d(joined, weight, layer.bias, dilation=layer.dilation, groups=x.shape[2]).transpose(1, 2)
    if isinstance(layer, Dense):
        if layer.taps > 1:
            joined = pasts.join(layer.past, x)
            starts = range(0, layer.taps * layer.dilation, layer.dilation)
            x = torch.cat([joined[:, start : start + frames] for start in starts], dim=2)
        return F.linear(x, layer.weight, layer.bias)
    if isinstance(layer, Output):
        weighed = F.linear(pasts.join(layer.past, x), layer.weight)
        out = layer.bias
        for tap in range(len(layer.weight)):
            start = tap * layer.dilation
            out = out + weighed[:, start : start + frames, tap : tap + 1]
        return out
    if isinstance(layer, Upsample):
        return _run(layer.dense, x, pasts).reshape(x.shape[0], -1, layer.channels)
    if isinstance(layer, Affine):
        return x * layer.scale + layer.bias
    if isinstance(layer, Add):
        return x + layer.embedding
    if isinstance(layer, Append):
        return torch.cat((x, layer.embedding.expand(x.shape[0], frames, -1)), dim=2)
    if layer is tanh:
        return torch.tanh(x)
    raise TypeError(f"no graph form of {layer!r}")
