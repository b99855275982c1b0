"""VibeVoice with random weights of a published size: the engine's step, its parts, first audio, and their floor.

    python tests/perf/bench_vibevoice.py [CONFIGS] [--streams 1 8 32] [--frames 40] [--bandwidth 4.3e12]

CONFIGS is a folder with a published ``config.json``; no weights are needed. Without it a tiny model is measured, which
says how the benchmark works and nothing of speed. A step is timed from its start to its samples being on the host, over
the steps in which all streams speak; first audio from the streams being added, all at once, to the samples of the last
one's first frame. A part is timed over ``--frames`` runs of it, on a GPU as a CUDA graph. The floor of a step is the
time to read the weights that it must read at ``--bandwidth`` bytes a second: those of the language model twice, for the
negative stream runs after the other one, and those of the diffusion head once for each of its ten steps, but for its
projection of the condition, which stays; keys, values and activations are not in it. Shown are medians.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from device_timing import BANDWIDTH, DEVICE, DTYPE, ON_GPU, bytes_of, captured, milliseconds
from torch import Tensor

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.decoder_layers import fuse
from triton_speech.families.rope import Rope
from triton_speech.families.vibevoice.checkpoint import SPEECH
from triton_speech.families.vibevoice.config import VibeVoiceConfig
from triton_speech.families.vibevoice.model import VibeVoice
from triton_speech.families.vibevoice.prompt import Prompt
from triton_speech.families.vibevoice.settings import Sampling
from triton_speech.families.vibevoice.talker import SlotTalker
from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint
from triton_speech.families.vibevoice.tokenizer import Controls

LENGTH, PROMPT, VOICE = 1024, 100, 75
"""Positions of a stream, of its words, and of the ten seconds of a voice sample."""
STEPS = 10


@torch.no_grad()
def load_talker(config: VibeVoiceConfig, slots: int) -> SlotTalker:
    """A talker that never stops: all that is read has one component in common, and it says a frame for it."""
    with torch.device("meta"):
        whole = VibeVoice(config, length=LENGTH)
    whole.to_empty(device=DEVICE)
    for name, tensor in whole.state_dict().items():
        tensor.normal_(0, 0.02)
        if "norm" in name and name.endswith("weight"):
            tensor.fill_(1.0)
    whole.model.speech_scaling_factor.fill_(0.2)
    embeddings = whole.model.language_model.embed_tokens.weight
    controls = Controls(start=1, end=2, frame=3, over=4)
    embeddings[:, 0] = 1.0
    whole.head_weight[[controls.start, controls.end, controls.over], 0] = -100.0
    whole.head_weight[controls.frame, 0] = 100.0
    for name, tensor in whole.state_dict().items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "connector.fc2.weight")):
            tensor[0] = 0.0
        if name.endswith("connector.fc2.bias"):
            tensor[0] = 0.5
    for name, weight in whole.named_parameters():
        # As they are loaded: audio is made in fp32.
        weight.data = weight.data.to(torch.float32 if name.startswith(SPEECH) else DTYPE)
    for part in whole.modules():
        if isinstance(part, Rope):
            part.build_tables(DEVICE)
    fuse(whole)
    return SlotTalker(whole.eval().requires_grad_(False), controls, slots)


def engine_steps(engine: TorchEngine, streams: int, frames: int) -> tuple[float, float]:
    """Median step, and the time until every stream has its first frame, in ms."""
    talker = engine.talker
    size = talker.config.decoder_config.vocab_size  # type: ignore[attr-defined]
    width = talker.voice_shape[1] - 1
    for index in range(streams):
        prompt = Prompt((*range(5, 5 + PROMPT), size), (torch.randn(VOICE, width),), size)
        engine.add(TalkerRequest(str(index), prompt, Sampling(index, inference_steps=STEPS), frames))
    began, first, steps = time.perf_counter(), 0.0, []
    heard: set[str] = set()
    while not engine.is_idle:
        start = time.perf_counter()
        made = [frame for frame in engine.step() if frame.patch is not None]
        now = time.perf_counter()
        heard.update(frame.stream for frame in made)
        if not first and len(heard) == streams:
            first = 1000 * (now - began)
        elif len(made) == streams:
            steps.append(1000 * (now - start))
    return median(steps), first


def floor(talker: SlotTalker, bandwidth: float) -> float:
    """Milliseconds, and prints what it is made of."""
    model = talker.model
    language = bytes_of(model.language_model, ("embed_tokens",))
    head, condition = bytes_of(model.prediction_head, ("cond_proj",)), bytes_of(model.prediction_head.cond_proj)
    ears = bytes_of(model.acoustic_tokenizer.decoder) + bytes_of(model.semantic_tokenizer)
    joints = bytes_of(model.acoustic_connector) + bytes_of(model.semantic_connector)
    total = 2 * language + STEPS * head + condition + ears + joints
    print(
        f"weights read in a step: language model 2 x {language / 1e9:.3g} GB, diffusion head {STEPS} x "
        f"{head / 1e9:.3g} GB, decoder and semantic encoder {ears / 1e9:.3g} GB"
    )
    print(f"floor at {bandwidth / 1e12:g} TB/s: {1000 * total / bandwidth:.3g} ms")
    return 1000 * total / bandwidth


def parts(engine: TorchEngine, talker: SlotTalker, streams: int, frames: int) -> dict[str, float]:
    """Milliseconds of what a step is made of, with all streams at position 300."""
    slots = torch.arange(1, streams + 1, device=DEVICE)
    positions = torch.full_like(slots, 300)
    attend = engine.cache.decode(slots, positions, 300)
    state = torch.randn(streams, talker.inputs.shape[-1], device=DEVICE, dtype=talker.dtype)
    language, inputs = talker.model.language_model, talker.inputs[slots, positions]
    latents = torch.randn(streams, talker.voice_shape[1] - 1, device=DEVICE)
    decoder, listener = talker.model.acoustic_tokenizer.decoder, talker.model.semantic_tokenizer.encoder
    speaking, hearing = decoder.new_rows(streams), listener.new_rows(streams)
    samples = torch.randn(streams, talker.hop, device=DEVICE)
    runs: dict[str, Callable[[], Tensor | tuple[Tensor, Tensor]]] = {
        "language model": lambda: talker.hidden(slots, positions, attend),
        "negative stream": lambda: talker.negative.hidden(language, slots, inputs, 301),
        "diffusion": lambda: talker.draw(slots, positions, state, state, STEPS),
        "decoder": lambda: decoder.run(latents.unsqueeze(1).to(speaking.dtype), speaking),
        "semantic encoder": lambda: listener.run(samples.to(hearing.dtype), hearing),
    }
    return {name: milliseconds(captured(run), frames) for name, run in runs.items()}


def bench(config: VibeVoiceConfig, counts: list[int], frames: int, bandwidth: float) -> None:
    options = EngineOptions(max_num_seqs=max(counts), prefill_chunk=512, prefill_budget=4096)
    talker = load_talker(config, slots_needed(options))
    least = floor(talker, bandwidth)
    began = time.perf_counter()
    engine = TorchEngine(talker, options, graphs=STEPS if ON_GPU else None)
    if ON_GPU:
        print(f"graphs captured in {time.perf_counter() - began:.1f} s")
    seconds = 1 / config.frames_per_second
    for streams in counts:
        engine_steps(engine, streams, 6)
        step, first = engine_steps(engine, streams, frames)
        speed = 1000 * seconds * streams / step
        print(
            f"{streams:3} streams: step {step:7.2f} ms ({step / least:5.1f} floors), first audio {first:7.1f} ms, "
            f"real-time factor {step / 1000 / seconds:.3f}, {speed:7.1f} audio-s/s"
        )
        told = parts(engine, talker, streams, frames)
        print("    " + ", ".join(f"{name} {took:.2f} ms" for name, took in told.items()))
    for kind, use in engine.graph_uses.items():
        print(f"graphs of {kind} steps: {use.replays} replayed, {use.fallbacks} steps without")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path, nargs="?")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH, help="bytes a second (%(default)g, an H200)")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        configs = args.configs or write_tiny_checkpoint(Path(folder) / "tiny")
        print(f"{configs.name}, {DEVICE.type}, {str(DTYPE).removeprefix('torch.')}")
        bench(VibeVoiceConfig.from_checkpoint(configs), args.streams, args.frames, args.bandwidth)


if __name__ == "__main__":
    main()
