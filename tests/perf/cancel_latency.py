"""From a caller's leaving to the free places of talker and codec, by pipeline, way of leaving and phase.

    python tests/perf/cancel_latency.py [--checkpoint DIR] [--repeats 10] [--steps 20] [--busy 0]

A server with one place in the talker and one in the codec; a stream that would run for many seconds, whose caller
leaves in a known phase. The talker's time ends with the first frame of a stream that waited for the place, so one
prompt and one step are in it (the line ``nobody leaves`` is that alone); the codec's with the first chunk of another
stream that it takes, tried without a pause. In the phase ``queued`` the caller waits behind another stream, and the
time ends when the codec has been told the end of what left the talker's queue. ``--busy`` processes spin beside it all.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import queue
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.serve.layout import REPOSITORIES, find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer

ROOT = Path(__file__).resolve().parents[2]
TEXT = "word " * 45
SCHEDULES = {"decode": [1], "between chunks": [1, 64], "before the first chunk": [64], "queued": [1]}
LIMIT_SECONDS = 60.0
# The gateway sends no schedule; a deadline may be over before the place is known to be taken; over HTTP, Triton sees
# with the first chunk that nobody is there.
NOT_MEASURED = {
    ("gateway", "between chunks"),
    ("deadline", "queued"),
    ("SSE", "before the first chunk"),
    ("SSE", "queued"),
}
PARAMETERS = {
    "voxcpm2_talker": {"threads": 1, "max_num_seqs": 1, "max_waiting": 1},
    "voxcpm2_codec": {"deterministic": "true", "threads": 1, "max_streams": 1, "idle_seconds": 36_000},
}
WAYS = ("cancel", "deadline", "stop_stream", "killed", "SSE", "gateway")


class Bench:
    def __init__(self, server: TritonServer, checkpoint: Path, steps: int, gateway: str) -> None:
        self.server = server
        self.steps = steps
        self.gateway = gateway
        self.channel = grpc.insecure_channel(server.grpc_url)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        self.patch = (1, config["patch_size"], config["feat_dim"])

    def open(self, model: str, inputs: dict[str, Any], outputs: tuple[str, ...], seconds: float | None = None) -> Any:
        """A stream, and the thread that reads it: only that tells when the first response came."""
        return self.stub.ModelStreamInfer(
            iter((request_message(model, inputs, outputs),)), timeout=seconds or LIMIT_SECONDS
        )

    def talk(self, frames: int) -> Any:
        """A stream at the talker itself."""
        inputs = {
            "TOKENS": np.ones(16, np.int32),
            "SEED": np.zeros(1, np.uint64),
            "MAX_FRAMES": np.array([frames], np.int32),
            "CHUNK_SCHEDULE": np.ones(1, np.int32),
            "CFG_VALUE": np.full(1, 2, np.float32),
            "INFERENCE_STEPS": np.full(1, self.steps, np.int32),
            "STREAM_ID": text_tensor(uuid.uuid4().hex),
        }
        return self.open("voxcpm2_talker", inputs, ("STREAM_ID", "FINISH_REASON"))

    def codec_begins(self) -> bool:
        """Whether the codec takes a new stream; its place is given back."""
        stream = text_tensor(uuid.uuid4().hex)
        inputs = {
            "LATENTS": np.zeros(self.patch, np.float32),
            "SKIP_FRAMES": np.zeros(1, np.int32),
            "CHUNK_INDEX": np.zeros(1, np.int32),
            "FINISH_REASON": text_tensor("stop"),
            "STREAM_ID": stream,
        }
        try:
            self.stub.ModelInfer(request_message("voxcpm2_codec", inputs, ("SAMPLE_RATE",)))
        except grpc.RpcError as error:
            if "is full" not in error.details():
                raise
            return False
        return True

    def request(self, phase: str) -> dict[str, Any]:
        return {
            "TEXT": text_tensor(TEXT),
            "SEED": np.ones(1, np.uint64),
            "INFERENCE_STEPS": np.array([self.steps], np.int32),
            "CHUNK_SCHEDULE": np.array(SCHEDULES[phase], np.int32),
        }

    @contextlib.contextmanager
    def caller(self, pipeline: str, way: str, phase: str) -> Iterator[Callable[[], float]]:
        """A caller in the middle of its stream; the function makes it leave, and tells when it did."""
        heard = phase in ("decode", "between chunks")
        if way in ("cancel", "deadline"):
            began = time.perf_counter()
            call = self.open(pipeline, self.request(phase), ("AUDIO",), 0.6 if way == "deadline" else None)
            if heard:
                next(call)

            def leave() -> float:
                if way == "deadline":
                    time.sleep(max(0.0, began + 0.6 - time.perf_counter()))
                    return began + 0.6
                call.cancel()
                return time.perf_counter()

            yield leave
        elif way == "stop_stream":
            client, answers = InferenceServerClient(self.server.grpc_url), queue.SimpleQueue[Any]()
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer(pipeline, _tensors(self.request(phase)))
            if heard:
                answers.get(timeout=LIMIT_SECONDS)
            moment: list[float] = []

            def stop() -> float:
                # It returns only when the stream has ended.
                moment.append(time.perf_counter())
                threading.Thread(target=lambda: client.stop_stream(cancel_requests=True)).start()
                return moment[0]

            yield stop
        elif way == "killed":
            code = _KILLED.format(url=self.server.grpc_url, pipeline=pipeline, steps=self.steps, text=TEXT)
            code = code.replace("SCHEDULE", repr(SCHEDULES[phase]))
            process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            process.stdout.readline()
            if heard:
                process.stdout.readline()

            def kill() -> float:
                process.kill()
                return time.perf_counter()

            yield kill
            process.wait()
        else:
            yield self._over_http(pipeline, way, phase, heard)

    def _over_http(self, pipeline: str, way: str, phase: str, heard: bool) -> Callable[[], float]:
        url = self.server.http_url if way == "SSE" else self.gateway
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=LIMIT_SECONDS)
        if way == "SSE":
            body = {"TEXT": TEXT, "SEED": 1, "INFERENCE_STEPS": self.steps, "CHUNK_SCHEDULE": SCHEDULES[phase]}
            connection.request("POST", f"/v2/models/{pipeline}/generate_stream", json.dumps(body))
        else:
            body = {
                "input": TEXT,
                "model": pipeline,
                "seed": 1,
                "inference_steps": self.steps,
                "response_format": "pcm",
            }
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/audio/speech", json.dumps(body), headers)
        answer = connection.getresponse() if heard else None
        if answer is not None:
            answer.read(1)

        def close() -> float:
            connection.sock and connection.sock.shutdown(2)
            if answer is not None:
                answer.close()
            connection.close()
            return time.perf_counter()

        return close

    def measure(self, pipeline: str, way: str, phase: str) -> tuple[float, float]:
        """Seconds from leaving to the talker's free place and to the codec's."""
        if phase == "queued":
            return self._measure_queued(pipeline, way), float("nan")
        with self.caller(pipeline, way, phase) as leave:
            if phase == "before the first chunk":
                time.sleep(0.15)
            waiting = self.talk(1)
            times: dict[str, float] = {}
            reader = threading.Thread(target=lambda: times.update(talker=_first(waiting)))
            reader.start()
            time.sleep(0.1)
            left = leave()
            if "talker" in times:
                reader.join()
                return self.measure(pipeline, way, phase)  # on a busy machine the other caller's request came later
            if phase != "before the first chunk":
                while not self.codec_begins():
                    pass
                times["codec"] = time.perf_counter()
            reader.join(LIMIT_SECONDS)
        return times["talker"] - left, times.get("codec", float("nan")) - left

    def _measure_queued(self, pipeline: str, way: str) -> float:
        occupant = self.talk(400)
        next(occupant)
        before = self.codec_calls()
        with self.caller(pipeline, way, "queued") as leave:
            time.sleep(0.15)
            left = leave()
            while self.codec_calls() == before:
                pass
            seconds = time.perf_counter() - left
        occupant.cancel()
        return seconds

    def codec_calls(self) -> int:
        request = service_pb2.ModelStatisticsRequest(name="voxcpm2_codec")
        return int(self.stub.ModelStatistics(request).model_stats[0].inference_stats.success.count)


_KILLED = """
import queue, numpy as np, tritonclient.grpc as g
c, q = g.InferenceServerClient("{url}"), queue.SimpleQueue()
c.start_stream(lambda result, error: q.put(result))
ins = []
for name, dtype, value in (
        ("TEXT", "BYTES", np.array([{text!r}.encode()], object)), ("SEED", "UINT64", np.ones(1, "u8")),
        ("INFERENCE_STEPS", "INT32", np.array([{steps}], "i4")), ("CHUNK_SCHEDULE", "INT32", np.array(SCHEDULE, "i4"))):
    t = g.InferInput(name, list(value.shape), dtype); t.set_data_from_numpy(value); ins.append(t)
c.async_stream_infer("{pipeline}", ins)
print("sent", flush=True); q.get(); print("heard", flush=True)
import time; time.sleep(100)
"""


def text_tensor(text: str) -> Any:
    return np.array([text.encode()], np.object_)


def request_message(model: str, inputs: dict[str, Any], outputs: tuple[str, ...]) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        dtype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=dtype, shape=array.shape)
        request.raw_input_contents.append(serialize_byte_tensor(array).item() if dtype == "BYTES" else array.tobytes())
    for name in outputs:
        request.outputs.add(name=name)
    return request


def _one_place(target: Path) -> Path:
    """The project's models, with one place in the talker and in the codec."""
    for repository in REPOSITORIES:
        shutil.copytree(find_models(ROOT) / repository, target / repository)
    for model, parameters in PARAMETERS.items():
        path = target / "model_repository" / model / "config.pbtxt"
        config = path.read_text(encoding="utf-8")
        for name, value in parameters.items():
            config = re.sub(rf'parameters \{{ key: "{name}".*\n', "", config)
            config += f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'
        path.write_text(config, encoding="utf-8")
    return target


def _tensors(request: dict[str, Any]) -> list[Any]:
    tensors = []
    for name, array in request.items():
        dtype = {"O": "BYTES", "u": "UINT64", "i": "INT32"}[array.dtype.kind]
        tensor = InferInput(name, list(array.shape), dtype)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def _first(call: Any) -> float:
    next(call)
    moment = time.perf_counter()
    for _ in call:
        pass
    return moment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="of VoxCPM2 (default: a tiny one with random weights)")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="diffusion steps: how long a step of the engine takes")
    parser.add_argument("--busy", type=int, default=0, help="processes that take the cores meanwhile")
    parser.add_argument("--pipelines", nargs="*", default=("voxcpm2", "voxcpm2_pipeline"))
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        models = _one_place(Path(folder) / "models")
        checkpoint = args.checkpoint or write_tiny_checkpoint(Path(folder) / "voxcpm2_tiny")
        with TritonServer(ServerSettings(models, checkpoint, ports=Ports(0, 0, 0))) as server:
            server.wait_ready(300)
            with _gateway(server.grpc_url) as gateway, _busy(args.busy):
                _print_table(Bench(server, checkpoint, args.steps, gateway), args)


def _print_table(bench: Bench, args: argparse.Namespace) -> None:
    alone = []
    for _ in range(args.repeats):
        began = time.perf_counter()
        alone.append(_first(bench.talk(1)) - began)
    print(f"nobody leaves: {_told(alone)} ms\n\n| pipeline | way | phase | talker | codec |\n|---|---|---|---|---|")
    for pipeline in args.pipelines:
        for way in args.ways:
            for phase in SCHEDULES:
                if (way, phase) in NOT_MEASURED:
                    continue
                pairs = [bench.measure(pipeline, way, phase) for _ in range(args.repeats)]
                talker, codec = zip(*pairs, strict=True)
                print(f"| {pipeline} | {way} | {phase} | {_told(talker)} | {_told(codec)} |", flush=True)


def _told(seconds: Any) -> str:
    """Median and worst in ms."""
    if any(value != value for value in seconds):
        return ""
    return f"{1000 * statistics.median(seconds):.0f} ({1000 * max(seconds):.0f})"


@contextlib.contextmanager
def _gateway(triton: str) -> Iterator[str]:
    code = "import sys; from triton_speech_client.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "gateway", "--triton", triton, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
