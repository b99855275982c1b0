"""The codec alone: milliseconds and audio by streams and patches in a batch, with and without graphs, and the floor.

    python tests/perf/bench_codec.py CHECKPOINT [--max-batch 64] [--matmul fp32 tf32] [--threads 1] [--onnx DIR]

CHECKPOINT is a folder; where it holds nothing but ``config.json``, the weights are random. A batch is timed from its
patches being on the host to its samples being there ("ms", median and 90th percentile of ``--rounds``), and with two
batches on the way at once ("audio-s/s"). Rounds of all ways take turns, so that one moment's noise hits all alike.
Floors: the decoder's weights read once, every convolution's output written and read once, and each stream's state read
and written once, at the device's bandwidth; multiplications and additions at its peak rate.
DIR is what ``triton-speech export codec`` wrote of the checkpoint: ONNX Runtime takes its turn with the others.
On the CPU, "CPU ms" is the time that this process computed (median), which a busy machine changes less; the last column
is the number of streams that one core would keep in real time.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from triton_speech.families.captured_decode import graph_shapes
from triton_speech.families.voxcpm2.audio_vae import AudioVAE
from triton_speech.families.voxcpm2.checkpoint import VAE_FILES, load_audio_vae
from triton_speech.families.voxcpm2.codec import VoxCPM2Codec
from triton_speech.families.voxcpm2.config import VoxCPM2Config
from triton_speech.families.voxcpm2.onnx_codec import OnnxCodec
from triton_speech.families.voxcpm2.streaming_decoder import StreamingDecoder
from triton_speech.streaming.batcher import PIECES

BANDWIDTH = {"NVIDIA H200": 4.3e12}
"""Bytes a second that a device copies to itself, measured."""
PEAK = {"NVIDIA H200": {"fp32": 67e12, "tf32": 495e12}}
"""Operations a second, by the data sheet."""
Way = tuple[str, str]
"""How matrices are multiplied, and what runs them: eager, graph or onnxruntime."""


@dataclass(frozen=True)
class Work:
    """What a patch and a batch cost at least. Bytes and operations."""

    weights: int
    state: int
    activations: int
    operations: int

    def floor(self, name: str, matmul: str, batch: int, patches: int) -> tuple[float, float]:
        """Milliseconds for memory and for arithmetic."""
        moved = self.weights + batch * (self.state + patches * self.activations)
        return 1000 * moved / BANDWIDTH[name], 1000 * batch * patches * self.operations / PEAK[name][matmul]


def count(vae: AudioVAE, decoder: StreamingDecoder, frames: int) -> Work:
    """Counts a long decode, so that its ends do not matter, and divides."""
    outputs = operations = 0

    def note(module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        nonlocal outputs, operations
        assert isinstance(module, nn.Conv1d | nn.ConvTranspose1d)
        outputs += output.numel()
        # An upsampled sample is made of two frames of each channel; else of a filter's taps.
        factors = 2 * module.in_channels if isinstance(module, nn.ConvTranspose1d) else module.weight[0].numel()
        operations += 2 * output.numel() * factors

    hooks = [
        module.register_forward_hook(note)
        for module in vae.decoder.modules()
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d)
    ]
    patches = 8
    vae.decode(torch.zeros(1, vae.config.latent_dim, patches * frames, device=decoder.device))
    for hook in hooks:
        hook.remove()
    weights = sum(p.numel() * p.element_size() for p in vae.decoder.parameters())
    return Work(weights, 8 * decoder.floats_per_slot, 8 * outputs // patches, operations // patches)


def one_at_a_time(codec: VoxCPM2Codec | OnnxCodec, patches: torch.Tensor, slots: list[int]) -> tuple[float, float]:
    """Seconds that passed, and seconds that this process computed."""
    began, computed = time.perf_counter(), time.process_time()
    codec.decode(patches, slots)
    return time.perf_counter() - began, time.process_time() - computed


def two_on_the_way(codec: VoxCPM2Codec | OnnxCodec, patches: torch.Tensor, slots: list[int], rounds: int) -> float:
    """Seconds for each batch."""
    began = time.perf_counter()
    before = codec.launch(patches, slots)
    for _ in range(rounds - 1):
        after = codec.launch(patches, slots)
        before.result()
        before = after
    before.result()
    return (time.perf_counter() - began) / rounds


def load(folder: Path, device: str) -> tuple[VoxCPM2Config, AudioVAE]:
    config = VoxCPM2Config.from_checkpoint(folder)
    if any((folder / name).is_file() for name in VAE_FILES):
        return config, load_audio_vae(folder, device=device)
    torch.manual_seed(0)
    return config, AudioVAE(config.audio_vae_config).eval().requires_grad_(False).to(device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--max-batch", type=int, default=64)
    parser.add_argument("--matmul", nargs="+", choices=["fp32", "tf32"], default=["fp32"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--onnx", type=Path, metavar="DIR", help="exported from the checkpoint: measure it too")
    parser.add_argument(
        "--shapes", nargs="+", metavar="BxT", help="streams and patches (default: all that have graphs)"
    )
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    torch.set_num_threads(args.threads)
    config, vae = load(args.checkpoint, device)
    decoder = StreamingDecoder(vae)
    work = count(vae, decoder, config.patch_size)
    seconds = config.patch_size * decoder.hop / config.audio_vae_config.out_sample_rate
    print(f"{name}: weights {work.weights / 1e6:.0f} MB, state of a stream {work.state / 2e6:.2f} MB;")
    print(f"a patch: {seconds:.3f} s of audio, {work.activations / 1e6:.1f} MB, {work.operations / 1e9:.2f} GFLOP")
    ways: dict[Way, VoxCPM2Codec | OnnxCodec] = {}
    for matmul in args.matmul if device == "cuda" else ["fp32"]:
        torch.set_float32_matmul_precision("high" if matmul == "tf32" else "highest")
        for graphs in (False, True) if device == "cuda" else (False,):
            began = time.perf_counter()
            limits = {"max_batch": args.max_batch, "pieces": PIECES, "graphs": graphs}
            ways[matmul, "graph" if graphs else "eager"] = VoxCPM2Codec(decoder, config, args.max_batch + 1, **limits)
            if graphs:
                print(f"{matmul}: graphs captured in {time.perf_counter() - began:.1f} s")
        if args.onnx is not None:
            slots, tf32 = args.max_batch + 1, matmul == "tf32"
            ways[matmul, "onnxruntime"] = OnnxCodec(args.checkpoint, args.onnx, slots=slots, device=device, tf32=tf32)
    shapes = graph_shapes(args.max_batch, PIECES)
    if args.shapes:
        shapes = [(int(batch), int(patches)) for batch, _, patches in (shape.partition("x") for shape in args.shapes)]
    header = "| streams | patches | way | ms | p90 | floor memory | arithmetic | audio-s/s | patches/s |"
    print(header + (" CPU ms | streams in real time |" if device == "cpu" else ""))
    print("|" + "---|" * (header.count("|") - 1 + 2 * (device == "cpu")))
    for batch, patches in shapes:
        given = torch.randn(batch, patches, *next(iter(ways.values())).patch_shape)
        slots = list(range(1, batch + 1))
        times: dict[Way, list[tuple[float, float]]] = {way: [] for way in ways}
        for round_ in range(args.rounds + 2):
            for way, codec in ways.items():
                torch.set_float32_matmul_precision("high" if way[0] == "tf32" else "highest")
                taken = one_at_a_time(codec, given, slots)
                if round_ >= 2:
                    times[way].append(taken)
        for way, codec in ways.items():
            torch.set_float32_matmul_precision("high" if way[0] == "tf32" else "highest")
            each = two_on_the_way(codec, given, slots, args.rounds)
            ordered, computed = (sorted(column) for column in zip(*times[way], strict=True))
            median, p90 = ordered[len(ordered) // 2], ordered[int(0.9 * len(ordered))]
            floor = work.floor(name, way[0], batch, patches) if name in BANDWIDTH else None
            print(
                f"| {batch} | {patches} | {way[0]} {way[1]} "
                f"| {1000 * median:.2f} | {1000 * p90:.2f} "
                + (f"| {floor[0]:.2f} | {floor[1]:.2f} " if floor else "| | ")
                + f"| {batch * patches * seconds / each:.0f} | {batch * patches / each:.0f} |"
                + (
                    f" {1000 * computed[len(computed) // 2]:.2f} | {batch * patches * seconds / median:.1f} |"
                    if device == "cpu"
                    else ""
                ),
                flush=True,
            )
    if device == "cuda":
        print(f"memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
