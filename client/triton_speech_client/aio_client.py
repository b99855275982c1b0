"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from triton_speech_client import wire
from triton_speech_client.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ServerError,
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

_CLOCK_GRAIN = 0.005
"""Seconds by which gRPC, which counts milliseconds of another clock, may end a call before this one's deadline."""


class AsyncSpeechClient:
    """``SpeechClient`` for asyncio: the same calls, any number of them at once. Belongs to one event loop."""

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
        self._channel: grpc.aio.Channel | None = None
        self._stub: service_pb2_grpc.GRPCInferenceServiceStub | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection, and with it the streams of this client that still run."""
        if self._channel is not None:
            await self._channel.close()

    def stream(
        self,
        text: str,
        *,
        request_id: str = "",
        pcm16: bool = False,
        deadline: float | None = None,
        **options: Unpack[SpeechOptions],
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speech while it is being made; for the arguments and errors see ``SpeechClient.stream``.

        ``aclose()``, or cancelling the task that waits for a chunk, cancels the request at the server. A loop
        that may be left early belongs within ``contextlib.aclosing``, as with every asynchronous generator.
        """
        wire.check_seconds("deadline", deadline)
        request = wire.infer_request(self.pipeline, text, request_id, pcm16, deadline, **options)
        return self._stream(request, pcm16, deadline)

    async def synthesize(
        self,
        text: str,
        *,
        request_id: str = "",
        pcm16: bool = False,
        deadline: float | None = None,
        **options: Unpack[SpeechOptions],
    ) -> Speech:
        """The whole speech, put together from the same stream."""
        chunks = self.stream(text, request_id=request_id, pcm16=pcm16, deadline=deadline, **options)
        builder = SpeechBuilder()
        async for chunk in chunks:
            builder.add(chunk)
        return builder.speech()

    async def is_ready(self) -> bool:
        """Whether the pipeline takes requests now. False also where there is no server."""
        return not await self._what_is_missing()

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """Returns once the pipeline takes requests; raises ``ServerUnavailable`` after ``timeout`` seconds."""
        limit = time.monotonic() + timeout
        while missing := await self._what_is_missing():
            if time.monotonic() >= limit:
                raise ServerUnavailable(f"{missing}, also after {timeout:g} s")
            await asyncio.sleep(wire.READY_POLL_SECONDS)

    async def models(self) -> list[str]:
        """The models of the server that take requests."""
        return wire.model_names(await self._call("ModelStatistics", service_pb2.ModelStatisticsRequest()))

    async def pipelines(self) -> list[str]:
        """The models that take text and give audio, and that are ready."""
        requests = [service_pb2.ModelMetadataRequest(name=name) for name in await self.models()]
        return sorted([r.name for r in requests if wire.is_pipeline(await self._call("ModelMetadata", r))])

    async def voices(self) -> list[Voice]:
        """All voices of the server, built in and stored, also those that cannot be used."""
        return read_voices(await self._ask_voices("list"))

    async def voice(self, name: str) -> Voice:
        """One voice; raises ``VoiceNotFound`` where there is none."""
        return read_voice(await self._ask_voices("show", name))

    async def add_voice(self, name: str, **recordings: Unpack[Recordings]) -> Voice:
        """Stores a voice on the server; see ``SpeechClient.add_voice``."""
        return read_voice(await self._ask_voices("add", name, **recordings))

    async def remove_voice(self, name: str) -> None:
        """Removes a stored voice; raises ``VoiceNotFound`` where there is none."""
        await self._ask_voices("remove", name)

    async def _ask_voices(self, command: str, name: str | None = None, **recordings: Unpack[Recordings]) -> bytes:
        request = wire.voices_request(build_command(command, name, **recordings))
        return wire.voices_result(await self._call("ModelInfer", request, ADD_SECONDS))

    def _connected(self) -> service_pb2_grpc.GRPCInferenceServiceStub:
        """The stub, made at the first use: a channel binds itself to the loop that runs at that time."""
        if self._stub is None:
            self._channel = grpc.aio.insecure_channel(self.url, options=wire.CHANNEL_OPTIONS)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._stub

    async def _stream(
        self, request: service_pb2.ModelInferRequest, pcm16: bool, deadline: float | None
    ) -> AsyncGenerator[AudioChunk, None]:
        """Tries until the first chunk, within the deadline that all tries share."""
        retries = Retries(self.retries, min(self.timeout, deadline or self.timeout))
        limit, is_heard = None if deadline is None else time.monotonic() + deadline, False
        while True:
            try:
                async with contextlib.aclosing(self._try(request, pcm16, limit, deadline)) as chunks:
                    async for chunk in chunks:
                        is_heard = True
                        yield chunk
                return
            except ServerUnavailable as error:
                wait = None if is_heard else retries.wait(error)
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    async def _try(
        self, request: service_pb2.ModelInferRequest, pcm16: bool, limit: float | None, deadline: float | None
    ) -> AsyncGenerator[AudioChunk, None]:
        """One try, until the time ``limit`` at the latest, which is where the ``deadline`` ends."""
        reader = wire.ResponseReader(pcm16)
        left = None if limit is None else limit - time.monotonic()
        call = self._connected().ModelStreamInfer(iter((request,)), timeout=left)
        try:
            while not reader.ended:
                response = await self._next_response(call, deadline)
                if response is None:
                    reader.check_end()
                    return
                if (chunk := reader.read(response)) is not None:
                    yield chunk
        except (asyncio.CancelledError, ServerError, ServerUnavailable) as error:
            # gRPC tells of a deadline that passes before the request is out as a cancel of its own, as "internal" or
            # as a message that could not be sent.
            if limit is None or time.monotonic() + _CLOCK_GRAIN < limit or _this_task_is_cancelled():
                raise
            raise error_from_grpc("DEADLINE_EXCEEDED", "", self.url, deadline) from error
        except InvalidRequest as error:
            if error.field == "pipeline":
                raise await self._unknown_pipeline(error) from error
            raise
        finally:
            if reader.ended:
                await _wait_for_end(call)
            call.cancel()

    async def _next_response(self, call: Any, deadline: float | None) -> Any:
        """The next response, None at the end of the stream."""
        # Not wait_for, which before Python 3.12 loses a cancel that comes together with a response.
        read = asyncio.ensure_future(call.read())
        try:
            await asyncio.wait({read}, timeout=self.timeout)
            if not read.done():
                raise DeadlineExceeded(f"no response came within the timeout of {self.timeout:g} s")
        finally:
            read.cancel()
        try:
            response = read.result()
        except grpc.aio.AioRpcError as e:
            raise self._error(e, deadline) from e
        return None if response is grpc.aio.EOF else response

    async def _call(self, method: str, request: Any, limit: float = wire.UNARY_SECONDS) -> Any:
        try:
            return await getattr(self._connected(), method)(request, timeout=limit)
        except grpc.aio.AioRpcError as e:
            raise self._error(e, limit) from e

    def _error(self, error: grpc.aio.AioRpcError, limit: float | None) -> SpeechClientError:
        return error_from_grpc(error.code().name, error.details() or "", self.url, limit)

    async def _unknown_pipeline(self, error: InvalidRequest) -> InvalidRequest:
        try:
            return wire.unknown_pipeline(self.pipeline, await self.pipelines())
        except SpeechClientError:
            return error

    async def _what_is_missing(self) -> str:
        """Empty when the pipeline takes requests, else a sentence."""
        try:
            if not (await self._call("ServerReady", service_pb2.ServerReadyRequest())).ready:
                return f"the server at {self.url} is not ready"
            if not (await self._call("ModelReady", service_pb2.ModelReadyRequest(name=self.pipeline))).ready:
                return f"the pipeline {self.pipeline!r} of the server at {self.url} is not ready"
        except SpeechClientError as e:
            return str(e)
        return ""


def _this_task_is_cancelled() -> bool:
    task = asyncio.current_task()
    # Python 3.10 cannot tell; there a deadline that has passed counts for more.
    return task is not None and hasattr(task, "cancelling") and task.cancelling() > 0


async def _wait_for_end(call: Any) -> None:
    """Lets the server close the stream by itself, so that a finished request never looks like a cancelled one."""
    try:
        while await asyncio.wait_for(call.read(), wire.CLOSING_SECONDS) is not grpc.aio.EOF:
            pass
    except (asyncio.TimeoutError, grpc.aio.AioRpcError):
        pass
