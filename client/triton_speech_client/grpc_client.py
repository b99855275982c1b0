"""The blocking client."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from triton_speech_client import wire
from triton_speech_client.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ServerUnavailable,
    SpeechClientError,
    error_from_grpc,
)
from triton_speech_client.request import SpeechOptions
from triton_speech_client.retry import RETRIES, Retries, check_retries
from triton_speech_client.speech import AudioChunk, Speech, SpeechBuilder
from triton_speech_client.voices import ADD_SECONDS, Recordings, Voice, build_command, read_voice, read_voices

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack


class SpeechClient:
    """Speech from a Triton server over gRPC. May be shared by threads: every request has a stream of its own.

    ``url`` is the host and port of the server's gRPC endpoint, ``pipeline`` the model to ask. ``timeout`` is the
    longest wait, in seconds, for the next response of a stream. Nothing is sent before the first call.
    ``retries`` is how often a stream is tried again that the server could not take (``ServerUnavailable``) and that
    has brought no chunk yet; 0 tells of it at once. Waits grow from 0.1 to 5 s, or last as long as the server asks.
    """

    def __init__(
        self,
        url: str = "127.0.0.1:8001",
        pipeline: str = "voxcpm2",
        timeout: float = 60.0,
        *,
        retries: int = RETRIES,
    ) -> None:
        wire.check_seconds("timeout", timeout)
        self.retries = check_retries(retries)
        self.url = wire.check_url(url)
        self.pipeline = pipeline
        self.timeout = timeout
        self._closed = threading.Event()
        self._channel = grpc.insecure_channel(url, options=wire.CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, and with it the streams of this client that still run."""
        self._closed.set()
        self._channel.close()

    def stream(
        self,
        text: str,
        *,
        request_id: str = "",
        pcm16: bool = False,
        deadline: float | None = None,
        **options: Unpack[SpeechOptions],
    ) -> Generator[AudioChunk, None, None]:
        """Speech while it is being made; ``options`` are the fields of ``SpeechOptions``.

        The request is checked now and sent when the first chunk is asked for. Closing the iterator (``close()``,
        or leaving a ``for`` loop over it) cancels the request at the server. ``pcm16`` asks for int16 samples.
        ``deadline`` limits the whole stream, in seconds, here and on the server. Raises ``SpeechClientError`` in its
        several kinds.
        """
        wire.check_seconds("deadline", deadline)
        request = wire.infer_request(self.pipeline, text, request_id, pcm16, deadline, **options)
        return self._stream(request, pcm16, deadline)

    def synthesize(
        self,
        text: str,
        *,
        request_id: str = "",
        pcm16: bool = False,
        deadline: float | None = None,
        **options: Unpack[SpeechOptions],
    ) -> Speech:
        """The whole speech, put together from the same stream; for the arguments and errors see ``stream``."""
        chunks = self.stream(text, request_id=request_id, pcm16=pcm16, deadline=deadline, **options)
        builder = SpeechBuilder()
        for chunk in chunks:
            builder.add(chunk)
        return builder.speech()

    def is_ready(self) -> bool:
        """Whether the pipeline takes requests now. False also where there is no server."""
        return not self._what_is_missing()

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Returns once the pipeline takes requests; raises ``ServerUnavailable`` after ``timeout`` seconds."""
        limit = time.monotonic() + timeout
        while missing := self._what_is_missing():
            if time.monotonic() >= limit:
                raise ServerUnavailable(f"{missing}, also after {timeout:g} s")
            time.sleep(wire.READY_POLL_SECONDS)

    def models(self) -> list[str]:
        """The models of the server that take requests."""
        return wire.model_names(self._call("ModelStatistics", service_pb2.ModelStatisticsRequest()))

    def pipelines(self) -> list[str]:
        """The models that take text and give audio, and that are ready."""
        requests = [service_pb2.ModelMetadataRequest(name=name) for name in self.models()]
        return sorted(r.name for r in requests if wire.is_pipeline(self._call("ModelMetadata", r)))

    def voices(self) -> list[Voice]:
        """All voices of the server, built in and stored, also those that cannot be used."""
        return read_voices(self._ask_voices("list"))

    def voice(self, name: str) -> Voice:
        """One voice; raises ``VoiceNotFound`` where there is none."""
        return read_voice(self._ask_voices("show", name))

    def add_voice(self, name: str, **recordings: Unpack[Recordings]) -> Voice:
        """Stores a voice on the server, in place of one of the same name; ``recordings`` as in ``Recordings``.

        From its return on, every request that names the voice is spoken in it.
        """
        return read_voice(self._ask_voices("add", name, **recordings))

    def remove_voice(self, name: str) -> None:
        """Removes a stored voice; raises ``VoiceNotFound`` where there is none."""
        self._ask_voices("remove", name)

    def _ask_voices(self, command: str, name: str | None = None, **recordings: Unpack[Recordings]) -> bytes:
        request = wire.voices_request(build_command(command, name, **recordings))
        return wire.voices_result(self._call("ModelInfer", request, ADD_SECONDS))

    def _stream(
        self, request: service_pb2.ModelInferRequest, pcm16: bool, deadline: float | None
    ) -> Generator[AudioChunk, None, None]:
        """Tries until the first chunk, within the deadline that all tries share."""
        retries = Retries(self.retries, min(self.timeout, deadline or self.timeout))
        began, is_heard = time.monotonic(), False
        while True:
            left = None if deadline is None else began + deadline - time.monotonic()
            try:
                with contextlib.closing(self._try(request, pcm16, left, deadline)) as chunks:
                    for chunk in chunks:
                        is_heard = True
                        yield chunk
                return
            except ServerUnavailable as error:
                wait = None if is_heard else retries.wait(error)
                if wait is None or self._closed.wait(wait):
                    raise

    def _try(
        self, request: service_pb2.ModelInferRequest, pcm16: bool, left: float | None, deadline: float | None
    ) -> Generator[AudioChunk, None, None]:
        """One try, of which ``left`` seconds of the ``deadline`` are left."""
        reader = wire.ResponseReader(pcm16)
        arrivals: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call = self._stub.ModelStreamInfer(iter((request,)), timeout=left)
        threading.Thread(target=_pump, args=(call, arrivals), name="speech-stream", daemon=True).start()
        try:
            while not reader.ended:
                response = self._next_response(arrivals, deadline)
                if response is None:
                    reader.check_end()
                    return
                if (chunk := reader.read(response)) is not None:
                    yield chunk
        except InvalidRequest as error:
            if error.field == "pipeline":
                raise self._unknown_pipeline(error) from error
            raise
        finally:
            if reader.ended:
                _wait_for_end(arrivals)
            call.cancel()

    def _next_response(self, arrivals: queue.SimpleQueue[Any], deadline: float | None) -> Any:
        """The next response, None at the end of the stream."""
        try:
            arrival = arrivals.get(timeout=self.timeout)
        except queue.Empty:
            raise DeadlineExceeded(f"no response came within the timeout of {self.timeout:g} s") from None
        if isinstance(arrival, grpc.RpcError):
            raise self._error(arrival, deadline) from arrival
        return arrival

    def _call(self, method: str, request: Any, limit: float = wire.UNARY_SECONDS) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=limit)
        except grpc.RpcError as e:
            raise self._error(e, limit) from e

    def _error(self, error: grpc.RpcError, limit: float | None) -> SpeechClientError:
        return error_from_grpc(error.code().name, error.details() or "", self.url, limit)

    def _unknown_pipeline(self, error: InvalidRequest) -> InvalidRequest:
        try:
            return wire.unknown_pipeline(self.pipeline, self.pipelines())
        except SpeechClientError:
            return error

    def _what_is_missing(self) -> str:
        """Empty when the pipeline takes requests, else a sentence."""
        try:
            if not self._call("ServerReady", service_pb2.ServerReadyRequest()).ready:
                return f"the server at {self.url} is not ready"
            if not self._call("ModelReady", service_pb2.ModelReadyRequest(name=self.pipeline)).ready:
                return f"the pipeline {self.pipeline!r} of the server at {self.url} is not ready"
        except SpeechClientError as e:
            return str(e)
        return ""


def _pump(call: Any, arrivals: queue.SimpleQueue[Any]) -> None:
    """Moves responses to where they can be waited for with a limit, which a gRPC call does not offer."""
    try:
        for response in call:
            arrivals.put(response)
        arrivals.put(None)
    except grpc.RpcError as e:
        arrivals.put(e)


def _wait_for_end(arrivals: queue.SimpleQueue[Any]) -> None:
    """Lets the server close the stream by itself, so that a finished request never looks like a cancelled one."""
    with contextlib.suppress(queue.Empty):
        arrival = arrivals.get(timeout=wire.CLOSING_SECONDS)
        while arrival is not None and not isinstance(arrival, grpc.RpcError):
            arrival = arrivals.get(timeout=wire.CLOSING_SECONDS)
