"""What the soak sees of a server from outside: processes, shared memory, places that are free."""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import soak_family
from soak_hearing import message
from soak_metrics import Ends, Scrape
from tritonclient.grpc import InferResult, service_pb2_grpc

from triton_speech_client.request import build_tensors

SHARED_MEMORY = Path("/dev/shm")
PROBE_SECONDS = 60.0

Stub = service_pb2_grpc.GRPCInferenceServiceStub


@dataclass(frozen=True)
class Process:
    """Sizes in MiB; ``shared`` is the part of ``resident`` that lies in shared memory.

    tritonserver maps a region anew, as a whole, each time that it grows, and keeps the mappings before, so ``shared``
    counts a region many times. What the regions take is seen in /dev/shm.
    """

    pid: int
    resident: float
    shared: float
    threads: int
    files: int

    @property
    def private(self) -> float:
        """What is its own: heap, stacks, libraries."""
        return self.resident - self.shared


def processes(launcher: int) -> dict[str, Process]:
    """The launcher, its server and the stubs of that, by the name of their model's instance."""
    found = {}
    pids = [launcher]
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
        if "VmRSS" not in status:
            continue  # it has died; Triton does not wait for its stubs
        names = [match[1] for word in words if (match := re.fullmatch(r"(\w+)_\d+_\d+", word))]
        name = "launcher" if one == launcher else names[0] if names else Path(words[0]).name
        found[name] = Process(one, _mib(status["VmRSS"]), _mib(status["RssShmem"]), int(status["Threads"]), files)
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
    """What there is at a rest, after ``streams`` streams.

    ``scrape`` and ``logged`` from before the places were tried, ``free`` what was wrong with these.
    """

    streams: int
    processes: dict[str, Process]
    shared_memory: SharedMemory
    scrape: Scrape
    logged: Ends
    free: list[str]


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
    family = soak_family.chosen
    inputs = {
        "TOKENS": np.array(family.tokens, np.int32),
        "SEED": np.zeros(1, np.uint64),
        "MAX_FRAMES": np.array([450], np.int32),
        "CHUNK_SCHEDULE": np.ones(1, np.int32),
        **build_tensors("", **family.slow),
    }
    del inputs["TEXT"]
    talker = f"{family.name}_talker"
    outputs = ("STREAM_ID", "FINISH_REASON")
    streams = [uuid.uuid4().hex for _ in range(places)]
    requests = [message(talker, {**inputs, "STREAM_ID": _text(stream)}, outputs) for stream in streams]
    calls = [stub.ModelStreamInfer(iter((request,)), timeout=PROBE_SECONDS) for request in requests]
    try:
        await asyncio.gather(*(call.read() for call in calls))
    except grpc.aio.AioRpcError:
        return -1
    for stream in streams:
        control = {"CONTROL": _text("cancel"), "STREAM_ID": _text(stream)}
        ended = stub.ModelStreamInfer(iter((message(talker, control, ("STREAM_ID",)),)))
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
    family = soak_family.chosen
    model = f"{family.name}_codec"
    inputs = {
        "LATENTS": np.zeros((1, *family.patch_shape(checkpoint)), np.float32),
        "SKIP_FRAMES": np.zeros(1, np.int32),
        "CHUNK_INDEX": np.zeros(1, np.int32),
        "FINISH_REASON": _text(""),
    }
    streams = [uuid.uuid4().hex for _ in range(places + 1)]
    begun = 0
    for stream in streams:
        try:
            await stub.ModelInfer(message(model, {**inputs, "STREAM_ID": _text(stream)}, ("SAMPLE_RATE",)))
            begun += 1
        except grpc.aio.AioRpcError as error:
            if "the codec is full" not in (error.details() or ""):
                raise
    for stream in streams:
        control = {"CONTROL": _text("release"), "STREAM_ID": _text(stream)}
        await stub.ModelInfer(message(model, control, ("SAMPLE_RATE",)))
    return begun


def _text(text: str) -> Any:
    return np.array([text.encode()], np.object_)
