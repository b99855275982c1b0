"""Training on a GPU: a step that is replayed from a graph is the step that it was captured from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from triton_speech.families.voxcpm2.audio_vae import AudioVAE
from triton_speech.families.voxcpm2.config import VoxCPM2Config
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.families.voxcpm2.training.captured import PLAIN_STEPS
from triton_speech.families.voxcpm2.training.codec import CodecStage
from triton_speech.families.voxcpm2.training.rows import Rows, Utterance
from triton_speech.families.voxcpm2.training.settings import CodecSettings, TalkerSettings
from triton_speech.families.voxcpm2.training.talker import TalkerStage, new_talker

STEPS = PLAIN_STEPS + 6
DEVICE = torch.device("cuda")


class Noise:
    """Speech for the AudioVAE, but noise."""

    def __init__(self, vae: AudioVAE) -> None:
        self._hops = vae.encoder_hop, vae.decoder_hop

    def poll(self) -> int:
        return 1

    def draw(self, batch: int, frames: int, source: np.random.Generator) -> tuple[Tensor, Tensor]:
        heard, wanted = (
            torch.from_numpy(source.normal(0, 0.1, (batch, frames * hop)).astype(np.float32)).to(DEVICE)
            for hop in self._hops
        )
        return heard, wanted


def codec(config: VoxCPM2Config, *, adversarial: bool) -> tuple[Any, nn.Module]:
    vae = AudioVAE(config.audio_vae_config).to(DEVICE)
    settings = CodecSettings(batch=4, frames=16)
    return CodecStage(vae, Noise(vae), settings, adversarial=adversarial), vae  # type: ignore[arg-type]


def talker(config: VoxCPM2Config) -> tuple[Any, nn.Module]:
    model = new_talker(config, 1).to(DEVICE)
    utterances = [Utterance([5 + n % 60] * (3 + n % 7), 20 * n, 4 + n % 16, n % 3) for n in range(60)]
    patches = torch.randn(1200, config.patch_size, config.feat_dim, device=DEVICE)
    settings = TalkerSettings(batch=4, length=128)
    return TalkerStage(model, patches, Rows(utterances, settings, 12.5), settings), model


MAKE: dict[str, Callable[[VoxCPM2Config], tuple[Any, nn.Module]]] = {
    "codec": lambda config: codec(config, adversarial=False),
    "decoder": lambda config: codec(config, adversarial=True),
    "talker": talker,
}


@pytest.mark.parametrize("name", MAKE)
def test_replayed_steps_learn_what_plain_ones_do(name: str, tmp_path: Path) -> None:
    config = VoxCPM2Config.from_checkpoint(write_tiny_checkpoint(tmp_path))
    curves = []
    for plain in (True, False):
        torch.manual_seed(0)
        stage, module = MAKE[name](config)
        if plain:
            stage._learn = stage._learned
        curve = []
        for number in range(STEPS):
            torch.manual_seed(number)
            curve.append({loss: float(value.detach()) for loss, value in stage.step(number, 1.0).items()})
        curves.append(curve)
    assert stage._learn._graph is not None
    for at, (one, other) in enumerate(zip(*curves, strict=True)):
        assert one == pytest.approx(other, rel=0.05, abs=1e-3), at
    before = [parameter.detach().clone() for parameter in module.parameters()]
    stage.step(STEPS, 0.0)
    assert all(torch.equal(*pair) for pair in zip(before, module.parameters(), strict=True)), "at a rate of 0"
    stage.step(STEPS + 1, 1.0)
    assert not all(torch.equal(*pair) for pair in zip(before, module.parameters(), strict=True))
