"""Trains the AudioVAE: first encoder and decoder by spectra, then the decoder alone against judges.

Latents are normed by their batch's mean and spread in the first stage; what that has come to is folded into the
encoder's last layer at its end, so that the latents of a finished encoder have mean 0 and spread 1 in each dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..audio_vae import AudioVAE, CausalConv
from .averages import Averages
from .captured import captured
from .discriminators import Judges, feature_loss, judges_loss, made_loss
from .optimisers import adamw, clip, restore, set_rate
from .pieces import Pieces
from .settings import CodecSettings
from .spectra import linear_loss, mel_loss

BETAS = (0.8, 0.99)
MOST_GRADIENT = 200.0
POLL_STEPS = 50
NORMING_BATCHES = 200


class CodecStage:
    """One of the two stages, on ``pieces``; ``adversarial`` is the second."""

    def __init__(
        self, vae: AudioVAE, pieces: Pieces, settings: CodecSettings, *, adversarial: bool, compiled: bool = False
    ) -> None:
        self.vae, self._pieces, self._settings, self._adversarial = vae, pieces, settings, adversarial
        parameter = next(vae.parameters())
        self._device = parameter.device
        vae.requires_grad_(True)
        vae.encoder.requires_grad_(not adversarial)
        if self._device.type == "cuda":
            use_sums(vae)
        self._trained = [one for one in vae.parameters() if one.requires_grad]
        self._maker = adamw(self._trained, settings.learning_rate, BETAS)
        self._averages = Averages(vae, settings.ema)
        self._judges = Judges().to(self._device) if adversarial else None
        if self._judges is not None:
            self._judging = adamw(list(self._judges.parameters()), settings.discriminator_rate, BETAS)
        self._make = torch.compile(self._made, dynamic=False) if compiled else self._made
        self._learn = captured(self._learned, "decoder" if adversarial else "codec", self._device)

    def step(self, number: int, factor: float) -> Mapping[str, Tensor]:
        settings = self._settings
        if number % POLL_STEPS == 0:
            self._pieces.poll()
        source = np.random.default_rng((settings.seed, number))
        heard, real = self._pieces.draw(settings.batch, settings.frames, source)
        spread = torch.rand(len(heard), 1, 1, device=self._device) * settings.latent_noise
        noise = torch.randn(len(heard), self.vae.config.latent_dim, settings.frames, device=self._device) * spread
        set_rate(self._maker, settings.learning_rate * factor)
        if self._judges is not None:
            set_rate(self._judging, settings.discriminator_rate * factor)
        losses = self._learn(heard, real, noise)
        self._averages.update(number)
        return losses

    def _learned(self, heard: Tensor, real: Tensor, noise: Tensor) -> Mapping[str, Tensor]:
        """One update of everything but the averages."""
        settings = self._settings
        with self._half():
            made = self._make(heard, noise).float()
        losses: dict[str, Tensor] = {}
        if self._judges is not None:
            losses["judges"] = self._teach_judges(real, made.detach())
        losses["mel"] = mel_loss(made, real, self.vae.config.out_sample_rate)
        losses["linear"] = linear_loss(made, real)
        total = settings.mel_weight * losses["mel"] + settings.linear_weight * losses["linear"]
        if self._judges is not None:
            self._judges.requires_grad_(False)
            with self._half():
                with torch.no_grad():
                    of_real = self._judges(real)
                of_made = self._judges(made)
            losses["taken"], losses["features"] = made_loss(of_made), feature_loss(of_real, of_made)
            total = total + losses["taken"] + settings.feature_weight * losses["features"]
        self._maker.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        losses["gradient"] = clip(self._trained, MOST_GRADIENT)
        self._maker.step()
        return losses

    def finish(self) -> None:
        self._averages.apply()
        if not self._adversarial:
            self._fold_norm()
            self._averages.load(dict(self.vae.named_parameters()))

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "vae": self.vae.state_dict(),
            "average": self._averages.values,
            "maker": self._maker.state_dict(),
        }
        if self._judges is not None:
            state |= {"judges": self._judges.state_dict(), "judging": self._judging.state_dict()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._averages.load(state["average"])
        self._averages.apply()
        if self._judges is not None:
            self._judges.load_state_dict(state["judges"])
        if "vae" in state:
            self.vae.load_state_dict(state["vae"])
            restore(self._maker, state["maker"])
            if self._judges is not None:
                restore(self._judging, state["judging"])

    def _half(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda")

    def _made(self, heard: Tensor, noise: Tensor) -> Tensor:
        latents = self.vae.encoder(heard.unsqueeze(1))
        if not self._adversarial:
            mean = latents.mean((0, 2), keepdim=True)
            spread = latents.var((0, 2), keepdim=True, unbiased=False).add(1e-6).sqrt()
            latents = (latents - mean) / spread
        return self.vae.decoder(latents + noise, self.vae.config.out_sample_rate).squeeze(1)

    def _teach_judges(self, real: Tensor, made: Tensor) -> Tensor:
        assert self._judges is not None
        # First of all: a capture that failed half way may have left them without.
        self._judges.requires_grad_(True)
        with self._half():
            loss = judges_loss(self._judges(real), self._judges(made))
        self._judging.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._judging.step()
        return loss

    @torch.no_grad()
    def _fold_norm(self) -> None:
        """Latents become (latents - mean) / spread, by their mean and spread over many pieces."""
        settings, seen = self._settings, []
        count = NORMING_BATCHES if self._device.type == "cuda" else 8
        for number in range(count):
            heard, _ = self._pieces.draw(settings.batch, settings.frames, np.random.default_rng((0, number)))
            # The first half has a past of zeros that speech does not have.
            seen.append(self.vae.encoder(heard.unsqueeze(1))[..., settings.frames // 2 :])
        latents = torch.cat(seen).double()
        mean, spread = latents.mean((0, 2)), latents.var((0, 2)).clamp(min=1e-8).sqrt()
        last = self.vae.encoder.fc_mu
        assert last.bias is not None
        last.weight.copy_(last.weight / spread[:, None, None])
        last.bias.copy_((last.bias - mean) / spread)


def use_sums(vae: AudioVAE) -> None:
    """Computes depthwise convolutions as sums over their taps: on a GPU faster than its library's, to train."""
    for module in vae.modules():
        if isinstance(module, CausalConv) and module.groups == module.in_channels > 1 and module.stride == (1,):
            module.forward = MethodType(_sum_of_taps, module)  # type: ignore[method-assign]


def _sum_of_taps(conv: CausalConv, x: Tensor) -> Tensor:
    x = F.pad(x, (conv.context, 0))
    (dilation,), (taps,) = conv.dilation, conv.kernel_size
    length = x.shape[-1] - conv.context
    weight = conv.weight[:, 0].to(x.dtype)
    out = x[..., :length] * weight[:, 0, None]
    for tap in range(1, taps):
        out = out + x[..., tap * dilation : tap * dilation + length] * weight[:, tap, None]
    return out if conv.bias is None else out + conv.bias.to(x.dtype)[:, None]
