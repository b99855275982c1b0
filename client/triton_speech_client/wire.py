"""The streams of both gRPC clients as protocol messages: one request out, many responses in.

The messages and stubs are tritonclient's. Its stream object is not used: it keeps a thread for every stream that
was cancelled, and it allows one stream a client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tritonclient.grpc import InferResult, service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from triton_speech_client import voices
from triton_speech_client.errors import InvalidRequest, RequestCancelled, ServerError, error_from_text
from triton_speech_client.request import SpeechOptions, build_tensors, requested_outputs
from triton_speech_client.speech import AudioChunk

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A name that stands for several servers: each request goes to the next one.
    ("grpc.lb_policy_name", "round_robin"),
    # Looked up again as soon as a connection ends, so that servers which go or come are known; gRPC would wait 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 5000),
    # gRPC would wait up to two minutes before it tries a restarted server again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
UNARY_SECONDS = 10.0
"""Limit of a call that makes no speech: readiness, the list of models."""
CLOSING_SECONDS = 1.0
"""How long the server may take to close a stream after its last response."""
READY_POLL_SECONDS = 0.1


def check_url(url: str) -> str:
    """``url`` if it is the ``host:port`` of a gRPC endpoint."""
    if "://" in url or ":" not in url:
        raise InvalidRequest("url", f"{url!r} is not host:port, such as 127.0.0.1:8001, the server's gRPC port")
    return url


def check_seconds(name: str, value: float | None) -> None:
    """Refuses a limit that no request could meet."""
    if value is not None and not value > 0:
        raise InvalidRequest(name, f"{value!r} is not a positive number of seconds")


def infer_request(
    pipeline: str,
    text: str,
    request_id: str,
    pcm16: bool,
    deadline: float | None = None,
    **options: Unpack[SpeechOptions],
) -> service_pb2.ModelInferRequest:
    """The message that asks ``pipeline`` for speech; the final flag will come even without data.

    ``deadline``, in seconds, is what the server gives the stream: it frees what a late one holds, in every pipeline.
    """
    request = service_pb2.ModelInferRequest(model_name=pipeline, id=request_id)
    _add_inputs(request, build_tensors(text, **options))
    for name in requested_outputs(pcm16):
        request.outputs.add(name=name)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    if deadline is not None:
        request.parameters["timeout"].int64_param = max(1, round(deadline * 1e6))
    return request


def voices_request(tensors: Mapping[str, Any]) -> service_pb2.ModelInferRequest:
    """The message that asks the model ``voices`` for one operation."""
    request = service_pb2.ModelInferRequest(model_name=voices.MODEL)
    _add_inputs(request, tensors)
    request.outputs.add(name=voices.RESULT)
    return request


def voices_result(response: service_pb2.ModelInferResponse) -> bytes:
    """The JSON in the answer."""
    result = InferResult(response).as_numpy(voices.RESULT)
    if result is None:
        raise ServerError(f"a response lacks the output {voices.RESULT}")
    return bytes(result.item())


def _add_inputs(request: service_pb2.ModelInferRequest, tensors: Mapping[str, Any]) -> None:
    for name, values in tensors.items():
        dtype = np_to_triton_dtype(values.dtype)
        request.inputs.add(name=name, datatype=dtype, shape=values.shape)
        content = serialize_byte_tensor(values).item() if dtype == "BYTES" else values.tobytes()
        request.raw_input_contents.append(content)


class ResponseReader:
    """Turns the responses of one stream into chunks and holds the stream to its contract."""

    def __init__(self, pcm16: bool) -> None:
        self.ended = False
        self._samples_name = requested_outputs(pcm16)[0]
        self._next_index = 0
        self._finish_reason = ""

    def read(self, response: service_pb2.ModelStreamInferResponse) -> AudioChunk | None:
        """The response's chunk; None for one that only ends the stream. Raises the error that it carries."""
        if response.error_message:
            self.ended = True
            raise error_from_text(response.error_message)
        message = response.infer_response
        self.ended = message.parameters["triton_final_response"].bool_param
        chunk = self._chunk(InferResult(message)) if message.outputs else None
        if self.ended:
            self.check_end()
        return chunk

    def check_end(self) -> None:
        """Raises ``ServerError`` if a stream that ends now is not whole."""
        if not self._finish_reason:
            made = f"after {self._next_index} chunks" if self._next_index else "and no speech was generated"
            raise ServerError(f"the stream ended without a finish reason {made}")

    def _chunk(self, result: InferResult) -> AudioChunk:
        names = (self._samples_name, "SAMPLE_RATE", "CHUNK_INDEX", "FINISH_REASON")
        outputs = [result.as_numpy(name) for name in names]
        missing = [name for name, values in zip(names, outputs, strict=True) if values is None]
        if missing:
            raise ServerError(f"a response lacks the output {missing[0]}")
        samples, sample_rate, index, finish_reason = outputs
        if index[0] != self._next_index:
            raise ServerError(f"chunk {index[0]} arrived where chunk {self._next_index} was due")
        self._next_index += 1
        self._finish_reason = finish_reason[0].decode("utf-8")
        if self._finish_reason == "cancelled":
            raise RequestCancelled(f"the server cancelled the request after {self._next_index} chunks")
        # The copy owns its samples: those of the message go with the message.
        return AudioChunk(samples.copy(), int(sample_rate[0]), int(index[0]), self._finish_reason)


def model_names(statistics: service_pb2.ModelStatisticsResponse) -> list[str]:
    """The models that take requests: Triton keeps statistics of those, and unlike its index they are open to all."""
    return sorted({model.name for model in statistics.model_stats})


def is_pipeline(metadata: service_pb2.ModelMetadataResponse) -> bool:
    """Whether a model takes text and gives audio."""
    return "TEXT" in _names(metadata.inputs) and "AUDIO" in _names(metadata.outputs)


def unknown_pipeline(pipeline: str, offered: list[str]) -> InvalidRequest:
    """The error for a pipeline that the server does not have."""
    names = ", ".join(offered) or "none"
    return InvalidRequest("pipeline", f"{pipeline!r} is not known to the server; its pipelines are {names}")


def _names(tensors: Iterable[Any]) -> set[str]:
    return {tensor.name for tensor in tensors}
