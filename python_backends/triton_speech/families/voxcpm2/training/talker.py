"""Trains the talker on the latents of a finished AudioVAE."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import soxr
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..audio_vae import AudioVAE
from ..config import VoxCPM2Config
from ..model import VoxCPM2Talker
from .averages import Averages
from .captured import captured
from .optimisers import Muon, adamw, clip, restore, set_rate
from .rows import Batch, Rows, Utterance
from .settings import TalkerSettings
from .speakers import SAMPLE_RATE
from .speech import read_shards
from .talker_loss import Draws, talker_loss
from .texts import Row

BETAS = (0.9, 0.97)
MOMENTUM = 0.95
MOST_GRADIENT = 1.0
EMBEDDING_SPREAD = 0.5
RESIDUAL_GAIN = 0.35
ENCODED_AT_ONCE = 16
"""Of a shard, sorted by length: more of them would be mostly padding."""


class TalkerStage:
    """``patches`` (L, P, D) of all utterances and the ``rows`` that are made of them."""

    def __init__(
        self,
        model: VoxCPM2Talker,
        patches: Tensor,
        rows: Rows,
        settings: TalkerSettings,
        *,
        workers: int = 0,
        compiled: bool = False,
    ) -> None:
        self.model, self._patches, self._rows, self._settings = model, patches, rows, settings
        self._device, self._workers = patches.device, workers
        model.requires_grad_(True)
        matrices = [one for name, one in model.named_parameters() if one.dim() == 2 and _is_inner(name)]
        inner = set(map(id, matrices))
        rest = [one for one in model.parameters() if id(one) not in inner]
        self._muon = Muon(matrices, settings.muon_rate, weight_decay=settings.weight_decay, momentum=MOMENTUM)
        self._adam = adamw(rest, settings.learning_rate, BETAS)
        self._averages = Averages(model, settings.ema)
        self._loss = torch.compile(talker_loss, dynamic=False) if compiled else talker_loss
        self._learn = captured(self._learned, "talker", self._device)
        self._batches: Iterator[Batch] | None = None

    def step(self, number: int, factor: float) -> Mapping[str, Tensor]:
        settings = self._settings
        if self._batches is None:
            steps = range(number, len(self._rows))
            # Its own source of chance: it draws from it when it begins, and a resumed run begins elsewhere.
            loader = DataLoader(self._rows, None, sampler=steps, num_workers=self._workers, generator=torch.Generator())
            self._batches = iter(loader)
        batch = next(self._batches).to(self._device)
        shape = (self._patches.shape[1], self._patches.shape[2])
        draws = Draws.random(batch, shape, settings.draws, settings.guidance_dropout, settings.history_noise)
        for optimiser, rate in ((self._muon, settings.muon_rate), (self._adam, settings.learning_rate)):
            set_rate(optimiser, rate * factor)
        losses = self._learn(*batch, *draws)
        self._averages.update(number)
        return losses

    def _learned(self, *given: Tensor) -> Mapping[str, Tensor]:
        """One update of everything but the averages, from the tensors of a batch and of its draws."""
        batch, draws = Batch(*given[: len(Batch._fields)]), Draws(*given[len(Batch._fields) :])
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            flow, stop = self._loss(self.model, self._patches, batch, draws)
        self._muon.zero_grad()
        self._adam.zero_grad()
        (flow + self._settings.stop_weight * stop).backward()  # type: ignore[no-untyped-call]
        gradient = clip(self.model.parameters(), MOST_GRADIENT)
        self._muon.step()
        self._adam.step()
        return {"flow": flow, "stop": stop, "gradient": gradient}

    def finish(self) -> None:
        self._averages.apply()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "average": self._averages.values,
            "muon": self._muon.state_dict(),
            "adam": self._adam.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._averages.load(state["average"])
        self._averages.apply()
        if "model" in state:
            self.model.load_state_dict(state["model"])
            restore(self._muon, state["muon"])
            restore(self._adam, state["adam"])


def new_talker(config: VoxCPM2Config, seed: int) -> VoxCPM2Talker:
    """A talker with random weights: its first velocities and its first stops say nothing."""
    model = VoxCPM2Talker(config)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_tokens" in name or "special_token" in name:
                parameter.normal_(std=EMBEDDING_SPREAD, generator=source)
            elif parameter.dim() == 2:
                gain = RESIDUAL_GAIN if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                parameter.normal_(std=gain / math.sqrt(3 * parameter.shape[1]), generator=source)
            elif name.endswith("bias"):
                parameter.zero_()
        model.feat_decoder.estimator.out_proj.weight.zero_()
        model.stop_head.weight.zero_()
    return model


@torch.no_grad()
def encode_speech(
    vae: AudioVAE, folder: Path, texts: Sequence[Row], tokens: Sequence[Sequence[int]], patch_size: int
) -> tuple[Tensor, list[Utterance]]:
    """Latent patches (L, P, D) fp16 of all shards on the AudioVAE's device, and where each utterance has its own."""
    device = next(vae.parameters()).device
    rate, hop = vae.config.sample_rate, vae.encoder_hop * patch_size
    parts: list[Tensor] = []
    utterances: list[Utterance] = []
    total = 0
    for shard in read_shards(folder, set()):
        samples = torch.from_numpy(soxr.resample(shard.samples, SAMPLE_RATE, rate))
        pieces = torch.split(samples, [count * rate // SAMPLE_RATE for count in shard.counts])
        order = sorted(range(len(pieces)), key=lambda index: len(pieces[index]))
        for first in range(0, len(order), ENCODED_AT_ONCE):
            some = order[first : first + ENCODED_AT_ONCE]
            padded = nn.utils.rnn.pad_sequence([pieces[index] for index in some], batch_first=True)
            # Every batch has a length of its own: trying all algorithms for each takes longer than the encoding.
            with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=torch.backends.cudnn.allow_tf32):
                latents = vae.encode(padded.to(device).float() / 32768).transpose(1, 2)
            for index, one in zip(some, latents, strict=True):
                count = len(pieces[index]) // hop
                parts.append(one[: count * patch_size].reshape(count, patch_size, -1).half())
                row = shard.rows[index]
                utterances.append(Utterance(tokens[row], total, count, texts[row].speaker))
                total += count
    return torch.cat(parts), utterances


def _is_inner(name: str) -> bool:
    """Whether a matrix lies between layers; what meets tokens, latents, times and verdicts is for Adam."""
    return ".layers." in name or name.split(".")[0] in (
        "fusion_concat_proj",
        "lm_to_dit_proj",
        "res_to_dit_proj",
        "stop_proj",
    )
