"""Upstream's own runtime (``voxcpm`` 2.0.3) on the same checkpoint: decode step and first latent of one stream.

    python tests/perf/bench_upstream.py CHECKPOINT [--frames 100] [--plain]

With ``optimize()``, which compiles its language models, encoder and diffusion transformer, unless ``--plain``. Needs
the package ``voxcpm``. Timed at its streaming generator, latents only: what ``bench_talker.py`` times of this project.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from voxcpm.model.voxcpm2 import VoxCPM2Model

AUDIO_START = 101


def measure(model: VoxCPM2Model, tokens: int, frames: int) -> tuple[float, list[float]]:
    """Seconds to the first latent, and between two latents."""
    ids = [3 + i % 60 for i in range(tokens)] + [AUDIO_START]
    text = torch.tensor([ids], device=model.device)
    mask = torch.ones_like(text, dtype=model._dtype())
    patches = torch.zeros(1, len(ids), model.patch_size, model.feat_dim, dtype=model._dtype(), device=model.device)
    last = time.perf_counter()
    seconds = []
    with torch.inference_mode():
        for latent, *_ in model.inference_streaming(text, mask, patches, torch.zeros_like(mask), max_len=frames):
            latent.float().cpu()
            now = time.perf_counter()
            seconds.append(now - last)
            last = now
    return seconds[0], seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--starts", type=int, default=9)
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.perf_counter()
    model = VoxCPM2Model.from_local(str(args.checkpoint), optimize=not args.plain, device=device)
    measure(model, args.tokens, 8)
    measure(model, args.tokens, 8)
    print(f"upstream on {device}, ready in {time.perf_counter() - began:.1f} s")
    first = sorted(measure(model, args.tokens, 3)[0] for _ in range(args.starts))
    steps = sorted(measure(model, args.tokens, args.frames)[1][2:])
    print("| streams | first latent p50 / p90 ms | step p50 / p90 ms |\n|---|---|---|")
    cells = (f"{1000 * s[len(s) // 2]:.2f} / {1000 * s[int(0.9 * len(s))]:.2f}" for s in (first, steps))
    print("| 1 | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
