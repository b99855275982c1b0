"""Qwen3-TTS with random weights of a published size: the engine's step, its parts, and the codec's step.

    python tests/perf/bench_qwen3_tts.py CONFIGS [--streams 1 8 32 64] [--frames 60]

CONFIGS is a folder with a published ``config.json`` and ``speech_tokenizer/config.json``; no weights are needed. A step
is timed from its start to its frames being on the host, over the steps in which all streams decode; a part of a step
over ``--frames`` runs of it, on a GPU as a CUDA graph. Beside them stands the floor of an H200: the bytes of the
weights that each reads, once for the talker and once for every one of the other codes, by the measured bandwidth. Shown
are medians.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import torch
from device_timing import BANDWIDTH, DEVICE, DTYPE, ON_GPU, bytes_of, captured, milliseconds
from torch import nn

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.decoder_layers import fuse
from triton_speech.families.qwen3_tts.codec_config import SpeechTokenizerConfig
from triton_speech.families.qwen3_tts.config import Qwen3TTSConfig
from triton_speech.families.qwen3_tts.model import Qwen3TTSTalker
from triton_speech.families.qwen3_tts.prompt import Prompt, Words
from triton_speech.families.qwen3_tts.settings import Sampling
from triton_speech.families.qwen3_tts.speech_decoder import SpeechDecoder
from triton_speech.families.qwen3_tts.streaming_decoder import DecoderState, StreamingDecoder
from triton_speech.families.qwen3_tts.talker import SlotTalker

LENGTH = 512


def random_weights(module: nn.Module, dtype: torch.dtype) -> None:
    module.to_empty(device=DEVICE)
    for tensor in module.state_dict().values():
        tensor.normal_(0, 0.02)
    for name, tensor in module.state_dict().items():
        if ("norm" in name and name.endswith("weight")) or "cluster_usage" in name:
            tensor.fill_(1.0)
    module.to(dtype).eval().requires_grad_(False)


def load_talker(config: Qwen3TTSConfig, slots: int) -> SlotTalker:
    """A talker that never stops: a step counts where all streams speak."""
    with torch.device("meta"):
        model = Qwen3TTSTalker(config.talker_config, length=LENGTH)
    random_weights(model, DTYPE)
    model.materialise(DEVICE)
    fuse(model)
    talker = SlotTalker(model, config, slots)
    talker._controls[talker._end] = True
    return talker


def engine_steps(engine: TorchEngine, streams: int, frames: int) -> tuple[float, float]:
    """Median step, and the longest time to a first frame, in ms."""
    words = Words(role=(1, 2, 3), text=tuple(range(10, 50)), non_streaming=True)
    for index in range(streams):
        engine.add(TalkerRequest(str(index), Prompt(words), Sampling(index), frames))
    began, first, steps = time.perf_counter(), 0.0, []
    while not engine.is_idle:
        start = time.perf_counter()
        made = engine.step()
        now = time.perf_counter()
        first = first or 1000 * (now - began) * (len(made) == streams)
        if len([frame for frame in made if frame.patch is not None]) == streams:
            steps.append(1000 * (now - start))
    return median(steps[2:] or steps), first


def bytes_read(talker: SlotTalker) -> tuple[int, int]:
    """Of the weights that a step reads: the talker's own, and those for the other codes of a frame."""
    predictor = talker.model.code_predictor
    once = bytes_of(talker.model, ("code_predictor", "embedding", "text_projection"))
    # Every code runs the predictor's stack and one head.
    each = (predictor.groups - 1) * bytes_of(predictor, ("embedding", "lm_head")) + bytes_of(predictor.lm_head)
    return once, each


def bench_talker(config: Qwen3TTSConfig, counts: list[int], frames: int) -> None:
    options = EngineOptions(max_num_seqs=max(counts), prefill_chunk=512, prefill_budget=4096)
    talker = load_talker(config, slots_needed(options))
    engine = TorchEngine(talker, options, graphs=0 if ON_GPU else None)
    once, each = bytes_read(talker)
    floors = [1000 * count / BANDWIDTH for count in (once, each)]
    print(f"weights: {once / 1e9:.2f} GB once and {each / 1e9:.2f} GB for the other codes of a frame")
    print(f"floor: {floors[0]:.2f} + {floors[1]:.2f} ms")
    for streams in counts:
        engine_steps(engine, streams, 8)
        step, first = engine_steps(engine, streams, frames)
        speed = 80 * streams / step
        print(f"{streams:3} streams: step {step:6.2f} ms, first frame {first:6.1f} ms, {speed:7.1f} audio-s/s")
        hidden, emit = talker_parts(engine, talker, streams, frames)
        print(f"    talker {hidden:5.2f} ms, frame {emit:5.2f} ms, {80 * streams / (hidden + emit):7.1f} audio-s/s")


def talker_parts(engine: TorchEngine, talker: SlotTalker, streams: int, frames: int) -> tuple[float, float]:
    slots = torch.arange(1, streams + 1, device=DEVICE)
    positions = torch.full_like(slots, 100)
    state = torch.randn(streams, talker.inputs.shape[-1], device=DEVICE, dtype=talker.dtype)
    attend = engine.cache.decode(slots, positions, 100)
    hidden = captured(lambda: talker.hidden(slots, positions, attend))
    emit = captured(lambda: talker.emit(slots, positions, state, state, 0))
    return milliseconds(hidden, frames), milliseconds(emit, frames)


def bench_codec(config: SpeechTokenizerConfig, counts: list[int], rounds: int) -> None:
    with torch.device("meta"):
        model = SpeechDecoder(config.decoder_config)
    random_weights(model, torch.float32)
    decoder = StreamingDecoder(model)
    state = decoder.new_state(max(counts) + 1)
    print(f"codec: {decoder.floats_per_slot * 4 / 1e6:.1f} MB of state for each stream")
    for streams in counts:
        for frames in (1, 4):
            codes = torch.randint(0, config.decoder_config.codebook_size, (streams, frames, decoder.groups))
            eager, graph = codec_step(decoder, state, codes.to(DEVICE), rounds)
            print(f"{streams:3} streams of {frames}: {eager:6.2f} ms, as a graph {graph:6.2f} ms")


def codec_step(decoder: StreamingDecoder, state: DecoderState, codes: torch.Tensor, rounds: int) -> tuple[float, float]:
    slots = torch.arange(1, len(codes) + 1, device=DEVICE)

    def run() -> object:
        return decoder.decode(codes, state, slots)

    return milliseconds(run, rounds), milliseconds(captured(run), rounds)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("configs", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--frames", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    print(args.configs.name)
    bench_talker(Qwen3TTSConfig.from_checkpoint(args.configs), args.streams, args.frames)
    bench_codec(SpeechTokenizerConfig.from_checkpoint(args.configs), args.streams, args.frames)


if __name__ == "__main__":
    main()
