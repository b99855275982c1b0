"""What the soak sees of a server from outside: memory, shared memory, counters, places that are free."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

SHARED_MEMORY = Path("/dev/shm")
PROBE_SECONDS = 60.0

Stub: TypeAlias = service_pb2_grpc.GRPCInferenceServiceStub
Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Process:
    """Sizes in MiB; ``shared`` is the part of ``resident`` that lies in shared memory."""

    resident: float
    shared: float
    threads: int
    files: int


def processes(pid: int) -> dict[str, Process]:
    """The server and its stubs, by the name of their model's instance."""
    found = {}
    pids = [pid]
    while pids:
        one = pids.pop()
        folder = Path(f"/proc/{one}")
        try:
            for task in (folder / "task").iterdir():
                pids += map(int, (task / "children").read_text(encoding="utf-8").split())
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            status = dict(line.split(":", 1) for line in (folder / "status").read_text(encoding="utf-8").splitlines())
            files = len(list((folder / "fd").iterdir()))
        except FileNotFoundError:
            continue
        names = [match[1] for word in words if (match := re.fullmatch(r"(\w+)_\d+_\d+", word))]
        found[names[0] if names else Path(words[0]).name] = Process(
            _mib(status["VmRSS"]), _mib(status["RssShmem"]), int(status["Threads"]), files
        )
    return found


def _mib(text: str) -> float:
    return int(text.split()[0]) / 1024


@dataclass(frozen=True)
class SharedMemory:
    files: int
    bytes: int


def shared_memory(prefix: str) -> SharedMemory:
    """What lies in /dev/shm under the prefix of one server."""
    sizes = []
    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return SharedMemory(len(sizes), sum(sizes))


@dataclass(frozen=True)
class Moment:
    """Sizes at a rest, after ``streams`` streams."""

    streams: int
    processes: dict[str, Process]
    shared_memory: SharedMemory
    cache: dict[str, int]
    free: list[str]


def cache_events(metrics_url: str) -> dict[str, int]:
    """The counters of the reference stage."""
    with urllib.request.urlopen(metrics_url, timeout=30) as answer:
        text = answer.read().decode()
    found = re.findall(r'^triton_speech_reference_cache_total\{.*event="(\w+)".*\} (\d+)', text, re.MULTILINE)
    return {event: int(number) for event, number in found}


async def free_places(stub: Stub, checkpoint: Path, *, talker: int, codec: int) -> list[str]:
    """Takes every place of the talker and of the codec at once, and gives them back.

    Returns:
        A sentence for each stage that has fewer places than it should, or more.
    """
    taken = [await _talker_places(stub, talker), await _codec_places(stub, checkpoint, codec)]
    wanted = [("talker", talker), ("codec", codec)]
    return [f"{name}: {has} of {all_} places" for (name, all_), has in zip(wanted, taken, strict=True) if has != all_]


async def _talker_places(stub: Stub, places: int) -> int:
    """Streams that are alive at the same time, each with its first chunk made and far from its end."""
    inputs = {
        "TOKENS": np.ones(16, np.int32),
        "SEED": np.zeros(1, np.uint64),
        "MAX_FRAMES": np.array([450], np.int32),
        "CHUNK_SCHEDULE": np.ones(1, np.int32),
        "CFG_VALUE": np.full(1, 2, np.float32),
        "INFERENCE_STEPS": np.full(1, 50, np.int32),
    }
    outputs = ("STREAM_ID", "FINISH_REASON")
    streams = [uuid.uuid4().hex for _ in range(places)]
    requests = [_request("voxcpm2_talker", {**inputs, "STREAM_ID": _text(stream)}, outputs) for stream in streams]
    calls = [stub.ModelStreamInfer(iter((request,)), timeout=PROBE_SECONDS) for request in requests]
    try:
        await asyncio.gather(*(call.read() for call in calls))
    except grpc.aio.AioRpcError:
        return -1
    for stream in streams:
        control = {"CONTROL": _text("cancel"), "STREAM_ID": _text(stream)}
        ended = stub.ModelStreamInfer(iter((_request("voxcpm2_talker", control, ("STREAM_ID",)),)))
        while await ended.read() is not grpc.aio.EOF:
            pass
    reasons = await asyncio.gather(*(_last_reason(call) for call in calls))
    # One that had ended by itself might have made room for another.
    return reasons.count("cancelled")


async def _last_reason(call: Any) -> str:
    reason = ""
    while (message := await call.read()) is not grpc.aio.EOF:
        if message.infer_response.outputs:
            reason = InferResult(message.infer_response).as_numpy("FINISH_REASON").item().decode() or reason
    return reason


async def _codec_places(stub: Stub, checkpoint: Path, places: int) -> int:
    """Streams that can be begun before the codec says that it is full; one more than ``places`` is tried."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    inputs = {
        "LATENTS": np.zeros((1, config["patch_size"], config["feat_dim"]), np.float32),
        "SKIP_FRAMES": np.zeros(1, np.int32),
        "CHUNK_INDEX": np.zeros(1, np.int32),
        "FINISH_REASON": _text(""),
    }
    streams = [uuid.uuid4().hex for _ in range(places + 1)]
    begun = 0
    for stream in streams:
        try:
            await stub.ModelInfer(_request("voxcpm2_codec", {**inputs, "STREAM_ID": _text(stream)}, ("SAMPLE_RATE",)))
            begun += 1
        except grpc.aio.AioRpcError as error:
            if "the codec is full" not in (error.details() or ""):
                raise
    for stream in streams:
        control = {"CONTROL": _text("release"), "STREAM_ID": _text(stream)}
        await stub.ModelInfer(_request("voxcpm2_codec", control, ("SAMPLE_RATE",)))
    return begun


def _text(text: str) -> Any:
    return np.array([text.encode()], np.object_)


def _request(model: str, inputs: Tensors, outputs: Sequence[str]) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        dtype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=dtype, shape=array.shape)
        content = serialize_byte_tensor(array).item() if dtype == "BYTES" else array.tobytes()
        request.raw_input_contents.append(content)
    for name in outputs:
        request.outputs.add(name=name)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request
