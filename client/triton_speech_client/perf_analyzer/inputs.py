"""Input files for perf_analyzer, made by asking the server's own stages: tokens and latents belong to a checkpoint."""

from __future__ import annotations

import base64
import io
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
import numpy.typing as npt
import soundfile
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from triton_speech_client import wire
from triton_speech_client.bench.texts import bundled_texts
from triton_speech_client.errors import ServerError, error_from_grpc, error_from_text

Tensors: TypeAlias = "dict[str, npt.NDArray[Any]]"

STREAMS = 32
"""Requests in the codec's file, each a stream of its own: so many may run at once."""
RECORDINGS = 8
RECORDING_HZ = 16000


@dataclass(frozen=True)
class Input:
    """One model's file, and the command that uses it."""

    model: str
    path: Path
    streaming: bool

    def command(self, url: str, more: Sequence[str] = (), program: str = "perf_analyzer") -> list[str]:
        """The words of the command, with the profile export beside the input file."""
        kind = ["--streaming", "--async"] if self.streaming else ["--async"]
        words = [program, "-m", self.model, "-i", "grpc", "-u", url, *kind, "--input-data", str(self.path)]
        return [*words, "--profile-export-file", str(self.path.with_suffix(".export.json")), *more]

    def shell(self, url: str) -> str:
        """The same as a line for a shell."""
        return shlex.join(self.command(url))


def write_inputs(folder: Path, url: str, seconds: float = 3.0) -> list[Input]:
    """Writes a file for each pipeline, each stage and ``voices`` of the server, as far as it has them.

    ``seconds`` limits what the pipelines and the talker make. Raises ``SpeechClientError`` and ``OSError``.
    """
    with Server(url) as server:
        written = []
        models = server.models()
        for model in models:
            requests = list(_requests(server, models, model, seconds))
            if requests:
                path = folder / f"{model}.json"
                path.write_text(json.dumps({"data": [_entry(one) for one in requests]}), encoding="utf-8")
                written.append(Input(model, path, server.is_decoupled(model)))
    return written


def _requests(server: Server, models: list[str], model: str, seconds: float) -> Iterator[Tensors]:
    stage = model.rpartition("_")[2]
    limit = np.array([seconds], np.float32)
    if model == "voices":
        yield {"COMMAND": _text("list")}
    elif stage == "reference":
        for index in range(RECORDINGS):
            yield {"REFERENCE_AUDIO": _text(_recording(index))}
    elif stage in ("frontend", "talker", "codec"):
        asked = [
            {"TEXT": _text(text), "SEED": np.array([i], np.uint64), "MAX_SECONDS": limit}
            for i, text in enumerate(bundled_texts())
        ]
        if stage == "frontend":
            yield from asked
            return
        family = next(name.removesuffix("_frontend") for name in models if _has_frontend(name, model))
        # A pipeline may have a talker of its own, and then it may be the only one.
        talkers = [name for name in models if name.startswith(f"{family}_") and name.endswith("_talker")]
        talker = model if stage == "talker" else min(talkers, key=len)
        tokens = [server.passed_on(server.first(f"{family}_frontend", one), talker) for one in asked]
        if stage == "talker":
            # Without a name each request is a stream of its own, however often the file is gone through.
            yield from ({name: value for name, value in one.items() if name != "STREAM_ID"} for one in tokens)
            return
        chunk = server.passed_on(server.first(talker, tokens[0]), model)
        for index in range(STREAMS):
            yield chunk | {"STREAM_ID": _text(f"perf-{index}"), "FINISH_REASON": _text("stop")}
    elif server.is_pipeline(model):
        for index, text in enumerate(bundled_texts()):
            yield {"TEXT": _text(text), "SEED": np.array([index], np.uint64), "MAX_SECONDS": limit}


def _has_frontend(frontend: str, model: str) -> bool:
    """Whether this is the frontend of the model's family, whose name both begin with."""
    family = frontend.removesuffix("_frontend")
    return family != frontend and model.startswith(f"{family}_")


class Server:
    """Any tensors to any model, over gRPC."""

    def __init__(self, url: str) -> None:
        self._url = wire.check_url(url)
        self._channel = grpc.insecure_channel(url, options=wire.CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def models(self) -> list[str]:
        """The models that are ready."""
        statistics = self._call("ModelStatistics", service_pb2.ModelStatisticsRequest())
        return sorted({model.name for model in statistics.model_stats})

    def is_pipeline(self, model: str) -> bool:
        return wire.is_pipeline(self._metadata(model))

    def is_decoupled(self, model: str) -> bool:
        config = self._call("ModelConfig", service_pb2.ModelConfigRequest(name=model)).config
        steps = [step.model_name for step in config.ensemble_scheduling.step]
        return config.model_transaction_policy.decoupled or any(self.is_decoupled(step) for step in steps)

    def passed_on(self, outputs: Tensors, model: str) -> Tensors:
        """Those of a stage's outputs that the next one takes."""
        inputs = {tensor.name for tensor in self._metadata(model).inputs}
        return {name: value for name, value in outputs.items() if name in inputs}

    def first(self, model: str, tensors: Mapping[str, npt.NDArray[Any]]) -> Tensors:
        """The outputs of the first response."""
        request = service_pb2.ModelInferRequest(model_name=model)
        for name, values in tensors.items():
            dtype = np_to_triton_dtype(values.dtype)
            request.inputs.add(name=name, datatype=dtype, shape=values.shape)
            is_text = dtype == "BYTES"
            request.raw_input_contents.append(serialize_byte_tensor(values).item() if is_text else values.tobytes())
        call = self._stub.ModelStreamInfer(iter((request,)), timeout=wire.UNARY_SECONDS)
        try:
            message = next(iter(call), None)
        except grpc.RpcError as e:
            raise self._error(e) from e
        finally:
            call.cancel()
        if message is None:
            raise ServerError(f"{model} did not answer")
        if message.error_message:
            raise error_from_text(message.error_message)
        result = InferResult(message.infer_response)
        arrays = {output.name: result.as_numpy(output.name) for output in message.infer_response.outputs}
        return {name: array for name, array in arrays.items() if array is not None}

    def _metadata(self, model: str) -> Any:
        return self._call("ModelMetadata", service_pb2.ModelMetadataRequest(name=model))

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=wire.UNARY_SECONDS)
        except grpc.RpcError as e:
            raise self._error(e) from e

    def _error(self, error: grpc.RpcError) -> Exception:
        return error_from_grpc(error.code().name, error.details() or "", self._url, wire.UNARY_SECONDS)


def _entry(tensors: Tensors) -> dict[str, Any]:
    """One request as perf_analyzer reads it."""
    return {name: _value(values) for name, values in tensors.items()}


def _value(values: npt.NDArray[Any]) -> Any:
    if values.dtype != np.object_:
        return {"content": values.ravel().tolist(), "shape": list(values.shape)}
    content = values.item()
    try:
        return {"content": [content.decode("utf-8")], "shape": [1]}
    except UnicodeDecodeError:
        # These bytes go out as they are, so Triton's length before a string has to be among them.
        raw = len(content).to_bytes(4, "little") + content
        return {"b64": base64.b64encode(raw).decode("ascii"), "shape": [1]}


def _text(value: str | bytes) -> npt.NDArray[Any]:
    return np.array([value.encode("utf-8") if isinstance(value, str) else value], dtype=np.object_)


def _recording(index: int) -> bytes:
    """A second of sound as a WAV file; each index gives another."""
    time = np.arange(RECORDING_HZ) / RECORDING_HZ
    pitch = 110.0 * 2 ** (index / 12)
    samples = sum(np.sin(2 * np.pi * pitch * harmonic * time) / harmonic for harmonic in range(1, 6))
    file = io.BytesIO()
    soundfile.write(file, (0.1 * samples).astype(np.float32), RECORDING_HZ, format="WAV", subtype="PCM_16")
    return file.getvalue()
