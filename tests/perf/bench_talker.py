"""A talker engine alone: decode step and first latent by number of streams, with the floor of reading the weights once.

    python tests/perf/bench_talker.py CHECKPOINT [--engine vllm torch] [--streams 1 8 32 64] [--frames 100]

Every number of streams starts at once with prompts of ``--tokens`` tokens. A step is timed from its start to its frames
being on the host; shown are median and 90th percentile of the steps in which all streams decode.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

import torch

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.families.registry import load_family

BANDWIDTH = {"NVIDIA H200": 4.3e12}
"""Bytes a second that a device copies to itself, measured."""


def measure(engine, family, streams: int, tokens: int, frames: int) -> tuple[float, list[float]]:
    """Seconds to the first frame, and the seconds of each step in which all streams decode."""
    for index in range(streams):
        prompt = family.make_prompt([3 + (7 * index + i) % 60 for i in range(tokens)], None, None)
        sampling = family.make_sampling(index, {})
        engine.add(TalkerRequest(f"stream-{index}", prompt, sampling, frames))
    began = time.perf_counter()
    first, steps = 0.0, []
    while not engine.is_idle:
        start = time.perf_counter()
        made = engine.step()
        now = time.perf_counter()
        if made and not first:
            first = now - began
        if len(made) == streams:
            steps.append(now - start)
    return first, steps[2:-2] or steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--family", default="voxcpm2")
    parser.add_argument("--engine", nargs="+", default=["vllm", "torch"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--length", type=int, default=1024)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    family = load_family(args.family)
    for kind in args.engine:
        began = time.perf_counter()
        options = EngineOptions(max_num_seqs=max(args.streams), prefill_chunk=512, prefill_budget=2048)
        choice = EngineChoice(kind, device=device, length=args.length)
        engine, talker = build_engine(choice, options, args.family, args.checkpoint)
        weights = sum(p.numel() * p.element_size() for p in talker.model.parameters())
        name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        print(f"{kind} on {name}, ready in {time.perf_counter() - began:.1f} s, weights {weights / 1e9:.2f} GB")
        if name in BANDWIDTH:
            print(f"floor, weights read once: {1000 * weights / BANDWIDTH[name]:.2f} ms")
        measure(engine, family, 1, args.tokens, 8)
        print("| streams | first latent ms | step median ms | p90 ms | RTF | audio-s/s |\n|---|---|---|---|---|---|")
        for streams in args.streams:
            first, steps = measure(engine, family, streams, args.tokens, args.frames)
            median, p90 = sorted(steps)[len(steps) // 2], sorted(steps)[int(0.9 * len(steps))]
            audio = 1 / talker.model.config.frames_per_second
            print(
                f"| {streams} | {1000 * first:.1f} | {1000 * median:.2f} | {1000 * p90:.2f} "
                f"| {median / audio:.4f} | {streams * audio / median:.0f} |",
                flush=True,
            )
        if device == "cuda":
            print(f"memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
        del engine, talker
        gc.collect()


if __name__ == "__main__":
    main()
