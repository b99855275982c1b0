"""One stream as its caller hears it: how it may be treated, all that it brings, and whether it ended as it should."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from triton_speech_client import wire
from triton_speech_client.errors import ServerError, SpeechClientError, error_from_grpc, error_from_text
from triton_speech_client.request import requested_outputs

STREAM_SECONDS = 240.0
"""A stream that has not ended by then never will."""


@dataclass(frozen=True)
class Manner:
    """How a caller treats a stream: it may leave after some seconds or chunks, or read slowly.

    ``lingers``: seconds from the chunk after which it leaves to its leaving.
    """

    leaves_after_seconds: float | None = None
    leaves_after_chunks: int | None = None
    lingers: float = 0.0
    pause: float = 0.0

    @property
    def leaves(self) -> bool:
        return self.leaves_after_seconds is not None or self.leaves_after_chunks is not None


@dataclass
class Ending:
    """All that a stream brought: samples, final flags, error texts; ``left`` by its caller, ``broken`` by gRPC.

    Times as ``time.monotonic``.
    """

    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    samples: list[Any] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    finals: int = 0
    left: bool = False
    broken: SpeechClientError | None = None

    def audio(self) -> Any:
        return np.concatenate(self.samples) if self.samples else np.zeros(0, np.float32)

    @property
    def error(self) -> SpeechClientError | None:
        """What a client of this project would raise."""
        return self.broken or (error_from_text(self.errors[0]) if self.errors else None)

    @property
    def reason(self) -> str:
        """FINISH_REASON of the last chunk."""
        return self.reasons[-1] if self.reasons else ""

    def fault(self) -> str:
        """What is wrong with the way this stream went; empty for one that ended once: whole, with an error, or left."""
        if self.indices != list(range(len(self.indices))):
            return f"chunks {self.indices}"
        if len(self.errors) > 1:
            return f"errors {self.errors}"
        if self.broken is not None:
            return f"{self.broken} after the end" if self.finals else ""
        if self.left and self.finals == 0:
            return ""
        if self.errors:
            # What Triton itself refuses has no final flag.
            return f"{self.finals} final flags" if self.finals > 1 else ""
        if self.finals != 1:
            return f"{self.finals} final flags"
        if self.reason not in ("stop", "length") or any(self.reasons[:-1]):
            return f"finish reasons {self.reasons}"
        return ""


def message(model: str, inputs: Mapping[str, Any], outputs: Sequence[str], request_id: str = "") -> Any:
    """A request of any tensors, well formed or not; BYTES as object arrays."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, array in inputs.items():
        dtype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=dtype, shape=array.shape)
        content = b"".join(serialize_byte_tensor(array).flat) if dtype == "BYTES" else array.tobytes()
        request.raw_input_contents.append(content)
    for name in outputs:
        request.outputs.add(name=name)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def speech_message(pipeline: str, inputs: Mapping[str, Any], request_id: str = "") -> Any:
    """A request for speech, of any tensors."""
    return message(pipeline, inputs, requested_outputs(pcm16=False), request_id)


async def play(
    stub: service_pb2_grpc.GRPCInferenceServiceStub,
    pipeline: str,
    options: Mapping[str, Any],
    manner: Manner | None = None,
    request_id: str = "",
) -> Ending:
    """One stream of the clients' own options."""
    return await hear(stub, wire.infer_request(pipeline, request_id=request_id, pcm16=False, **options), manner)


async def hear(stub: service_pb2_grpc.GRPCInferenceServiceStub, request: Any, manner: Manner | None = None) -> Ending:
    """One stream, from its request to its end or its caller's leaving."""
    manner = manner or Manner()
    ending = Ending()
    call = stub.ModelStreamInfer(iter((request,)))
    reading = asyncio.ensure_future(_read(call, ending, manner))
    limit = STREAM_SECONDS if manner.leaves_after_seconds is None else manner.leaves_after_seconds
    done, _ = await asyncio.wait({reading}, timeout=limit)
    if not done:
        if manner.leaves:
            ending.left = True
        else:
            ending.broken = ServerError(f"no end within {STREAM_SECONDS:g} s")
        call.cancel()
        await asyncio.wait({reading})
    ending.ended = time.monotonic()
    if not ending.left and ending.broken is None:
        ending.broken = _how_it_broke(reading)
    return ending


def _how_it_broke(reading: asyncio.Future[None]) -> SpeechClientError | None:
    if reading.cancelled():
        return ServerError("the call was cancelled")
    error = reading.exception()
    if isinstance(error, grpc.aio.AioRpcError):
        return error_from_grpc(error.code().name, error.details() or "", "the server")
    if error is not None:
        raise error
    return None


async def _read(call: Any, ending: Ending, manner: Manner) -> None:
    while (answer := await call.read()) is not grpc.aio.EOF:
        _take(answer, ending)
        if manner.leaves_after_chunks is not None and len(ending.samples) >= manner.leaves_after_chunks:
            await asyncio.sleep(manner.lingers)
            ending.left = True
            call.cancel()
            return
        if manner.pause:
            await asyncio.sleep(manner.pause)


def _take(answer: Any, ending: Ending) -> None:
    response = answer.infer_response
    ending.finals += response.parameters["triton_final_response"].bool_param
    if answer.error_message:
        ending.errors.append(answer.error_message)
    elif response.outputs:
        result = InferResult(response)
        ending.samples.append(result.as_numpy("AUDIO").copy())
        ending.indices.append(int(result.as_numpy("CHUNK_INDEX").item()))
        ending.reasons.append(result.as_numpy("FINISH_REASON").item().decode())
