"""What drawing the first code of a frame costs, and what it keeps: the family's sampler and vLLM's own.

    python tests/perf/bench_sampling.py [--rows 1 8 64] [--frames 100]

Needs vLLM. Each row has its own seed, top-k 50, top-p 0.9 and a repetition penalty; ``--frames`` codes have
been said before.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
from device_timing import DEVICE, milliseconds
from torch import Tensor
from vllm.v1.sample.ops.penalties import apply_all_penalties
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p, random_sample

from triton_speech.families.noise import uniforms
from triton_speech.families.qwen3_tts.sampling import choose, penalise

ROUNDS = 50
VOCABULARY, TOP_K, TOP_P, PENALTY, TEMPERATURE = 3072, 50, 0.9, 1.05, 0.9


def column(rows: int, value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((rows,), value, dtype=dtype, device=DEVICE)


def ours(logits: Tensor, said: Tensor) -> Callable[[], Tensor]:
    rows = len(logits)
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, said, True)
    seeds, frame = torch.arange(rows, device=DEVICE), column(rows, 7, torch.int64)
    top_k, top_p = column(rows, TOP_K, torch.int64), column(rows, TOP_P)
    penalty, temperature = column(rows, PENALTY), column(rows, TEMPERATURE)

    def run() -> Tensor:
        chance = uniforms(seeds, frame, range(1), VOCABULARY)[:, 0]
        return choose(penalise(logits, seen, penalty), chance, temperature, top_k, top_p)

    return run


def vllms(logits: Tensor, said: Tensor) -> Callable[[], Tensor]:
    rows = len(logits)
    before = said.tolist()
    prompt = torch.full((rows, 1), VOCABULARY, dtype=torch.int64, device=DEVICE)
    none = column(rows, 0.0)
    top_k, top_p = column(rows, TOP_K, torch.int32), column(rows, TOP_P)
    penalty, temperature = column(rows, PENALTY), column(rows, TEMPERATURE)
    generators = {row: torch.Generator(DEVICE).manual_seed(row) for row in range(rows)}

    def run() -> Tensor:
        penalised = apply_all_penalties(logits.clone(), prompt, none, none, penalty, before)
        kept = apply_top_k_top_p(penalised / temperature.unsqueeze(1), top_k, top_p)
        return random_sample(kept.softmax(-1), generators)

    return run


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--frames", type=int, default=100)
    args = parser.parse_args()
    source = torch.Generator().manual_seed(0)
    for rows in args.rows:
        logits = (3 * torch.randn(rows, VOCABULARY, generator=source)).to(DEVICE)
        said = torch.randint(0, VOCABULARY, (rows, args.frames), generator=source).to(DEVICE)
        times = [milliseconds(make(logits, said), ROUNDS) for make in (ours, vllms)]
        same = float((ours(logits, said)() == vllms(logits, said)()).float().mean())
        print(f"{rows:3} rows: the family's {times[0]:.2f} ms, vLLM's {times[1]:.2f} ms; the same code {same:.0%}")


if __name__ == "__main__":
    main()
