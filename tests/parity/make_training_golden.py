"""Writes down the losses and gradients that PyPI voxcpm==2.0.3 has on a few utterances, for ``training``.

In the environment of ``make_goldens.py``, on the checkpoint that this has written::

    upstream/bin/python tests/parity/make_training_golden.py tests/parity/data

Utterances are as the talker reads them: plain, with a reference, and as a continuation, of which the last patches are
to be made. Upstream draws from torch's generator; what it drew is written down too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from make_goldens import import_upstream, load_model

AUDIO_START, REF_START, REF_END = 101, 103, 104
UTTERANCES: dict[str, list[tuple[str, int]]] = {
    # Parts in order: a text's tokens, a marker, or so many patches; the last patches are to be made.
    "plain": [("text", 9), ("mark", AUDIO_START), ("made", 6)],
    "reference": [
        ("mark", REF_START),
        ("heard", 5),
        ("mark", REF_END),
        ("text", 7),
        ("mark", AUDIO_START),
        ("made", 4),
    ],
    "continuation": [("text", 12), ("mark", AUDIO_START), ("heard", 5), ("made", 7)],
}
GUIDANCE_DROPOUT = 0.4


class Listener:
    """What upstream draws in one loss."""

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self.rand: list[Tensor] = []
        self.normal: list[Tensor] = []
        self.time = torch.empty(0)

    def __enter__(self) -> Listener:
        self._whole = torch.rand, torch.randn_like, self.decoder.sample_r_t

        def rand(*args: Any, **options: Any) -> Tensor:
            self.rand.append(self._whole[0](*args, **options))
            return self.rand[-1]

        def randn_like(like: Tensor) -> Tensor:
            self.normal.append(self._whole[1](like))
            return self.normal[-1]

        def sample(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
            both = self._whole[2](*args, **options)
            self.time = both[1]
            return both

        torch.rand, torch.randn_like, self.decoder.sample_r_t = rand, randn_like, sample
        return self

    def __exit__(self, *_: object) -> None:
        torch.rand, torch.randn_like, self.decoder.sample_r_t = self._whole


def lay_out(parts: list[tuple[str, int]], shape: tuple[int, int], source: torch.Generator) -> dict[str, Tensor]:
    tokens: list[int] = []
    is_audio: list[bool] = []
    made: list[bool] = []
    for kind, value in parts:
        count = 1 if kind == "mark" else value
        audio = kind in ("heard", "made")
        drawn = torch.randint(3, 100, (count,), generator=source).tolist() if kind == "text" else [0] * count
        tokens += [value] if kind == "mark" else drawn
        is_audio += [audio] * count
        made += [kind == "made"] * count
    patches = torch.randn(len(tokens), *shape, generator=source) * torch.tensor(is_audio)[:, None, None]
    return {
        "tokens": torch.tensor(tokens),
        "is_audio": torch.tensor(is_audio),
        "made": torch.tensor(made),
        "patches": patches,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the golden losses with upstream's package.")
    parser.add_argument("data", type=Path, help="folder with checkpoint/, which gets training.safetensors")
    folder = parser.parse_args().data
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = load_model(import_upstream(), folder / "checkpoint").float()
    decoder = model.feat_decoder
    decoder.training_cfg_rate = GUIDANCE_DROPOUT
    source = torch.Generator().manual_seed(5)
    model.train()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    kept: dict[str, Tensor] = {}
    losses = []
    for name, parts in UTTERANCES.items():
        laid = lay_out(parts, (model.patch_size, model.feat_dim), source)
        stop = torch.zeros(1, len(laid["tokens"]), dtype=torch.long)
        stop[0, -1] = 1
        audio, made = laid["is_audio"].float()[None], laid["made"].float()[None]
        with Listener(decoder) as heard:
            out = model(laid["tokens"][None], 1 - audio, laid["patches"][None], audio, made, None, stop)
        where = laid["made"]
        laid["noise"] = heard.normal[-1].transpose(1, 2)[where]
        laid["time"] = heard.time[where]
        laid["guided"] = (heard.rand[0] > GUIDANCE_DROPOUT).float()[where]
        kept |= {f"{name}/{key}": value.contiguous() for key, value in laid.items()}
        losses.append((out["loss/diff"], out["loss/stop"], float(where.sum())))
    total = sum(count for _, _, count in losses)
    flow = sum(diff * count for diff, _, count in losses) / total
    stopping = sum(stop * count for _, stop, count in losses) / total
    (flow + stopping).backward()
    kept |= {"flow": flow.detach(), "stop": stopping.detach()}
    kept |= {
        f"gradient/{name}": one.grad.norm()
        for name, one in model.named_parameters()
        if one.grad is not None and not name.startswith("audio_vae.")
    }
    save_file(kept, folder / "training.safetensors")


if __name__ == "__main__":
    main()
