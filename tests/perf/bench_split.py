"""What a frame costs where the diffusion is a stage of its own, against the talker that makes its own patches.

    python tests/perf/bench_split.py [CHECKPOINT ...] [--streams 1 8 32] [--rounds 3] [--frames 64]
        [--device cuda:0] [--dit-device cuda:1] [--dtype auto] [--onnx DIR]

One server holds both talkers of each checkpoint (by default the tiny one and the quickstart voice); they are called
directly, by turns, so that neither codec nor the hour of the day favours one. All streams of a round start at once.
A frame's cost is the time from a stream's first frame to its last one by the frames between them, while all streams
run; shown is the median over the streams of all rounds, and the fastest and slowest round (its median).
"""

from __future__ import annotations

import argparse
import platform
import queue
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import tritonclient.grpc as grpcclient

from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.serve.layout import REPOSITORIES, find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer

ROOT = Path(__file__).resolve().parents[2]
TALKERS = {"inline": "voxcpm2_talker", "stage": "voxcpm2_split_talker"}
TEXT = "The small boat went slowly down the river, and nobody on the bank saw it pass the old stone bridge. " * 2


def link_models(source: Path, target: Path, parameters: dict[str, dict[str, object]]) -> None:
    """Links every model; those with parameters get a configuration of their own."""
    for repository in REPOSITORIES:
        (target / repository).mkdir()
        for model in (source / repository).iterdir():
            link = target / repository / model.name
            if model.name not in parameters:
                link.symlink_to(model)
                continue
            link.mkdir()
            (link / "1").symlink_to(model / "1")
            config = (model / "config.pbtxt").read_text(encoding="utf-8")
            for name, value in parameters[model.name].items():
                config = re.sub(rf'parameters \{{ key: "{name}".*\n', "", config)
                config += f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'
            (link / "config.pbtxt").write_text(config, encoding="utf-8")


@contextmanager
def serving(checkpoint: Path, args: argparse.Namespace) -> Iterator[TritonServer]:
    talker = {"device": args.device, "dtype": args.dtype, "max_num_seqs": max(args.streams), "threads": args.threads}
    dit = {"device": args.dit_device or args.device, "dtype": args.dtype, "threads": args.threads}
    if args.onnx:
        dit |= {"runtime": "onnxruntime", "onnx_graphs": args.onnx.resolve(), "dtype": "float32"}
    parameters = {**dict.fromkeys(TALKERS.values(), talker), "voxcpm2_dit": dit}
    parameters["voxcpm2_codec"] = {"device": "cpu", "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        link_models(find_models(ROOT), models, parameters)
        pipelines = ("voxcpm2", "voxcpm2_split")
        settings = ServerSettings(models, checkpoint, None, pipelines=pipelines, ports=Ports(0, 0, 0), drain_seconds=2)
        with TritonServer(settings) as server:
            server.wait_ready(600)
            yield server


def tokens(server: TritonServer) -> np.ndarray:
    text = grpcclient.InferInput("TEXT", [1], "BYTES")
    text.set_data_from_numpy(np.array([TEXT.encode()], dtype=object))
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        answer = client.infer("voxcpm2_frontend", [text], outputs=[grpcclient.InferRequestedOutput("TOKENS")])
    return answer.as_numpy("TOKENS")


def stream(server: TritonServer, model: str, prompt: np.ndarray, seed: int, frames: int) -> float:
    """Seconds a frame, from the first to the last."""
    values = {
        "TOKENS": prompt,
        "SEED": np.array([seed], np.uint64),
        "MAX_FRAMES": np.array([frames + 1], np.int32),
        "CHUNK_SCHEDULE": np.array([1, frames], np.int32),
        "CFG_VALUE": np.array([2.0], np.float32),
        "INFERENCE_STEPS": np.array([10], np.int32),
    }
    kinds = {"uint64": "UINT64", "int32": "INT32", "float32": "FP32"}
    inputs = [grpcclient.InferInput(name, value.shape, kinds[value.dtype.name]) for name, value in values.items()]
    for tensor in inputs:
        tensor.set_data_from_numpy(values[tensor.name()])
    answers: queue.Queue[tuple[float, int]] = queue.Queue()

    def take(result: grpcclient.InferResult | None, error: Exception | None) -> None:
        if error is not None:
            raise SystemExit(f"{model}: {error}")
        latents = result.as_numpy("LATENTS")
        answers.put((time.perf_counter(), 0 if latents is None else len(latents)))

    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(take)
        outputs = [grpcclient.InferRequestedOutput("LATENTS")]
        client.async_stream_infer(model, inputs, outputs=outputs)
        (first, _), (last, made) = answers.get(timeout=600), answers.get(timeout=600)
        client.stop_stream()
    return (last - first) / max(made, 1)


def measure(server: TritonServer, streams: int, rounds: int, frames: int) -> dict[str, list[list[float]]]:
    """Seconds a frame of each stream, by round, by kind."""
    prompt = tokens(server)
    taken: dict[str, list[list[float]]] = {kind: [] for kind in TALKERS}
    for round_ in range(rounds + 1):
        for kind, model in TALKERS.items():
            with ThreadPoolExecutor(streams) as threads:
                seeds = range(100 * round_, 100 * round_ + streams)
                costs = list(threads.map(lambda seed, m=model: stream(server, m, prompt, seed, frames), seeds))
            # The first round pays for what is built when it is first needed.
            if round_:
                taken[kind].append(costs)
    return taken


def shown(rounds: list[list[float]]) -> tuple[float, str]:
    medians = [1000 * statistics.median(costs) for costs in rounds]
    middle = 1000 * statistics.median(cost for costs in rounds for cost in costs)
    return middle, f"{middle:.1f} ({min(medians):.1f} to {max(medians):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path, nargs="*")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=64, help="at most 64, a chunk's limit")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dit-device", help="default: the talkers'")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=1, help="of each process on the CPU")
    parser.add_argument("--onnx", type=Path, help="graphs of the checkpoint, for the stage to run on ONNX Runtime")
    args = parser.parse_args()
    place = torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.processor() or "CPU"
    print(f"{place}, {args.rounds} rounds of {args.frames} frames, milliseconds a frame")
    print("| checkpoint | streams | inline | stage | more |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        tiny = write_tiny_checkpoint(Path(folder) / "tiny")
        for checkpoint in args.checkpoints or [tiny, ROOT / "checkpoints" / "quickstart"]:
            with serving(checkpoint, args) as server:
                for streams in args.streams:
                    taken = measure(server, streams, args.rounds, args.frames)
                    (inline, told), (stage, told_too) = (shown(taken[kind]) for kind in TALKERS)
                    row = f"{checkpoint.name} | {streams} | {told} | {told_too} | {stage - inline:+.1f} ms"
                    print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
