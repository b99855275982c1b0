"""A talker engine alone: decode step and first latent by number of streams, with the floor of reading the weights once.

    python tests/perf/bench_talker.py CHECKPOINT [--family voxcpm2] [--engine vllm torch] [--streams 1 8 32 64]

CHECKPOINT may be one of ``random_checkpoint.py``. Every number of streams starts at once with ``--text``. A step is
timed from its start to its frames being on the host; shown are median and 90th percentile of the steps in which all
streams decode. The first frame is measured over ``--starts`` rounds of three frames each, from the first step to a
stream's first frame on the host.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.families.registry import Family, load_family
from triton_speech.request import SpeechRequest

BANDWIDTH = {"NVIDIA H200": 4.3e12}
"""Bytes a second that a device copies to itself, measured."""
TEXT = "The small boat went down the river, and nobody saw it pass."


@dataclass(frozen=True)
class Measured:
    first: list[float]
    """Seconds from the start to each stream's first frame."""
    steps: list[float]
    """Seconds of each step in which all streams decode."""


@dataclass(frozen=True)
class Said:
    """What all streams say: a text as the talker reads it, and how many frames are a second of it."""

    family: Family
    tokens: list[int]
    rate: float

    @classmethod
    def of(cls, family: Family, checkpoint: Path, text: str) -> Said:
        frontend = family.load_frontend(checkpoint, family.FrontendParameters())
        seconds = 4.0
        segment = frontend.prepare(SpeechRequest(text, max_seconds=seconds))
        return cls(family, segment.tokens, segment.max_frames / seconds)

    def request(self, seed: int, frames: int) -> TalkerRequest:
        prompt = self.family.make_prompt(self.tokens, None, None)
        return TalkerRequest(f"stream-{seed}", prompt, self.family.make_sampling(seed, {}), frames)


def measure(engine, said: Said, streams: int, frames: int) -> Measured:
    for seed in range(streams):
        engine.add(said.request(seed, frames))
    began = time.perf_counter()
    first: dict[str, float] = {}
    steps = []
    while not engine.is_idle:
        start = time.perf_counter()
        made = engine.step()
        now = time.perf_counter()
        for frame in made:
            first.setdefault(frame.stream, now - began)
        if len(made) == streams:
            steps.append(now - start)
    return Measured(list(first.values()), steps[2:-2] or steps)


def at(values: list[float], share: float) -> float:
    return 1000 * sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--family", default="voxcpm2")
    parser.add_argument("--engine", nargs="+", default=["vllm", "torch"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--length", type=int, default=1152)
    parser.add_argument("--starts", type=int, default=9, help="rounds over which the first frame is measured")
    parser.add_argument("--cfg-cutoff-ratio", type=float, default=1.0, help="share of the steps that are guided")
    parser.add_argument("--kv-gib", type=float, default=3.0, help="vLLM's cache; 64 x 1,085 positions are 2.4")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    said = Said.of(load_family(args.family), args.checkpoint, args.text)
    only = {"cfg_cutoff_ratio": args.cfg_cutoff_ratio} if args.cfg_cutoff_ratio != 1 else {}
    for kind in args.engine:
        began = time.perf_counter()
        options = EngineOptions(max_num_seqs=max(args.streams), prefill_chunk=512, prefill_budget=2048)
        choice = EngineChoice(
            kind,
            device=device,
            length=args.length,
            kv_cache_bytes=int(args.kv_gib * 2**30),
            talker_options=only,
        )
        engine, talker = build_engine(choice, options, args.family, args.checkpoint)
        weights = sum(p.numel() * p.element_size() for p in talker.model.parameters())
        name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        print(f"{kind} on {name}, ready in {time.perf_counter() - began:.1f} s, weights {weights / 1e9:.2f} GB")
        if name in BANDWIDTH:
            print(f"floor, weights read once: {1000 * weights / BANDWIDTH[name]:.2f} ms")
        print(f"a prompt is {said.request(0, 1).prompt.length} positions")
        measure(engine, said, 1, 8)
        print("| streams | first frame p50 / p90 ms | step p50 / p90 ms | RTF | audio-s/s |\n|---|---|---|---|---|")
        for streams in args.streams:
            starts = [measure(engine, said, streams, 3).first for _ in range(args.starts)]
            first = [seconds for one in starts for seconds in one]
            steps = measure(engine, said, streams, args.frames).steps
            median = at(steps, 0.5) / 1000
            factor = median * said.rate
            print(
                f"| {streams} | {at(first, 0.5):.1f} / {at(first, 0.9):.1f} "
                f"| {at(steps, 0.5):.2f} / {at(steps, 0.9):.2f} | {factor:.4f} | {streams / factor:.0f} |",
                flush=True,
            )
        if device == "cuda":
            free, total = torch.cuda.mem_get_info()
            print(f"GPU memory of this process and all others on it: {(total - free) / 2**30:.1f} GiB")
        del engine, talker
        gc.collect()


if __name__ == "__main__":
    main()
