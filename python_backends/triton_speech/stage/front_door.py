"""The front door: one request from its text to its last chunk, over a family's stages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import triton_python_backend_utils as pb_utils
from pydantic import Field

from ..errors import SpeechError, full
from ..families.registry import load_family
from ..parameters import Parameters
from .late import NOBODY, ping_inputs, while_alive
from .triton import Reply, respond_error, start_stage, tensors, text_array

log = logging.getLogger(__name__)

AUDIO_OUTPUTS = ("AUDIO", "PCM16", "SAMPLE_RATE", "CHUNK_INDEX", "FINISH_REASON")
REFERENCE_INPUTS = ("REFERENCE_AUDIO", "PROMPT_AUDIO")
LATENT_INPUTS = ("REFERENCE_LATENTS", "PROMPT_LATENTS")
FRONTEND_OUTPUTS = ("STREAM_ID", "TOKENS", "SEED", "MAX_FRAMES", "CHUNK_SCHEDULE")
CHUNK_OUTPUTS = ("STREAM_ID", "LATENTS", "SKIP_FRAMES", "CHUNK_INDEX", "FINISH_REASON", "ERROR")
PING_OUTPUT = {"reference": "REFERENCE_LATENTS", "talker": "STREAM_ID", "codec": "SAMPLE_RATE"}
CANCEL_POLL_SECONDS = 0.02
END = object()


class FrontDoorParameters(Parameters):
    max_streams: int = Field(default=64, ge=1)
    """Requests at once; one more is refused."""
    stall_seconds: float = Field(default=30.0, gt=0)
    """A stage that keeps a stream waiting for longer is taken for dead."""
    queue_seconds: float = Field(default=30.0, gt=0)
    """A stream that has not begun within this time gives up: the talker is full."""


class FrontDoorStage:
    """Binds a pipeline to Triton: decoupled, asynchronous, one coroutine for each request.

    Triton 2.51 tells a cancel to this stage alone, so it polls for it and tells the talker and the codec itself.
    """

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        self._parameters = FrontDoorParameters.from_triton(args["model_config"])
        self._frontend_outputs = [*FRONTEND_OUTPUTS, *LATENT_INPUTS, *family.SAMPLING_INPUTS]
        # Reading a stream of responses blocks, so each stream holds a thread; they are cheap and mostly asleep.
        # As many again for cancels, which must not wait behind the streams that they end.
        self._threads = ThreadPoolExecutor(2 * self._parameters.max_streams, thread_name_prefix="stream")
        self._tasks: set[asyncio.Task[None]] = set()
        self._pings: dict[str, asyncio.Future[None]] = {}
        self._died: set[str] = set()
        """Stages that have not answered since they failed. Each call of one keeps the next one waiting for a second."""
        self._live = 0

    async def execute(self, requests: list[Any]) -> None:
        # Triton makes its calls on the loop's default threads. A small machine has six of them: as many streams that
        # wait for a slot would keep all others from the codec.
        asyncio.get_running_loop().set_default_executor(self._threads)
        await asyncio.gather(*(self._serve(request) for request in requests))

    def finalize(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, request: Any) -> None:
        reply = Reply(request.get_response_sender())
        request_id = request.request_id() or uuid.uuid4().hex
        try:
            if self._live >= self._parameters.max_streams:
                raise full("the server", self._parameters.max_streams)
            self._live += 1
            try:
                await self._speak(request, reply, request_id)
            finally:
                self._live -= 1
        except Exception as error:
            reply.finish(respond_error(error, request_id))

    async def _speak(self, request: Any, reply: Reply, request_id: str) -> None:
        talker_inputs = await self._prepare(request, request_id)
        stream_id = next(tensor for tensor in talker_inputs if tensor.name() == "STREAM_ID")
        requested = [name for name in AUDIO_OUTPUTS if name in request.requested_output_names()]
        opening = self._submit("talker", talker_inputs, CHUNK_OUTPUTS, request_id, decoupled=True)
        # A watcher ends by itself, soon after the reply.
        self._keep(asyncio.create_task(self._watch(reply, stream_id, request_id)))
        try:
            # A call opens with its first response, so this is the wait for a slot.
            begun = asyncio.ensure_future(self._alive("talker", opening))
            await asyncio.wait({begun}, timeout=self._parameters.queue_seconds)
            if not begun.done():
                self._keep(asyncio.create_task(self._drain(begun)))
                raise _no_place(self._parameters.queue_seconds)
            chunks = await begun
            # Read to the end even after a failure: a dropped iterator leaks shared memory in the 2.51 stub.
            async for chunk in self._each(iter(chunks)):
                if reply.ended:
                    continue
                try:
                    await self._pass_on(chunk, reply, requested, request_id)
                except Exception as error:
                    self._fail(error, reply, stream_id, request_id)
            if not reply.ended:
                raise SpeechError("INTERNAL", "the talker ended without a last chunk; no speech was made")
        except Exception as error:
            self._fail(error, reply, stream_id, request_id)

    def _fail(self, error: Exception, reply: Reply, stream_id: Any, request_id: str) -> None:
        """Tells the caller at once; a stage that does not answer must not keep it waiting."""
        if not reply.ended:
            if isinstance(error, TimeoutError | asyncio.TimeoutError):
                seconds = self._parameters.stall_seconds
                error = SpeechError(
                    "UNAVAILABLE", f"the server is not ready: no answer of a stage within {seconds:g} s"
                )
            reply.finish(respond_error(error, request_id))
            self._keep(asyncio.create_task(self._clean_up(stream_id, request_id)))

    async def _clean_up(self, stream_id: Any, request_id: str) -> None:
        if "talker" not in self._died:
            await self._cancel(stream_id, request_id)
        if "codec" not in self._died:
            await self._release(stream_id, request_id)

    def _keep(self, task: asyncio.Task[None]) -> None:
        """The loop itself holds tasks only weakly."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, begun: asyncio.Future[Any]) -> None:
        """Reads what a stream still sends whose caller has been told already that it will not begin."""
        with contextlib.suppress(SpeechError, TimeoutError, asyncio.TimeoutError):
            async for _ in self._each(iter(await begun)):
                pass

    async def _pass_on(self, chunk: Any, reply: Reply, requested: Iterable[str], request_id: str) -> None:
        """Turns one of the talker's responses into one for the caller."""
        _raise_error(chunk)
        if not chunk.output_tensors():
            return
        decoding = self._call("codec", chunk.output_tensors(), requested, request_id)
        audio = await self._alive("codec", decoding)
        self._died.discard("codec")
        response = pb_utils.InferenceResponse(audio.output_tensors())
        if _is_last(chunk):
            reply.finish(response)
        else:
            reply.send(response)

    async def _prepare(self, request: Any, request_id: str) -> list[Any]:
        """What the talker is to be given: the frontend's outputs, with the latents of audio where there is any."""
        inputs = request.inputs()
        audio = [tensor for tensor in inputs if tensor.name() in REFERENCE_INPUTS]
        text = self._call("frontend", inputs, self._frontend_outputs, request_id)
        if not audio:
            return list((await text).output_tensors())
        latents = self._alive("reference", self._call("reference", audio, LATENT_INPUTS, request_id))
        prepared, encoded = await asyncio.gather(text, latents)
        settings = [tensor for tensor in prepared.output_tensors() if tensor.name() not in LATENT_INPUTS]
        return [*settings, *encoded.output_tensors()]

    async def _call(
        self, stage: str, inputs: Iterable[Any], outputs: Iterable[str], request_id: str, *, decoupled: bool = False
    ) -> Any:
        """One call of a stage; its error becomes a SpeechError."""
        answer = self._submit(stage, inputs, outputs, request_id, decoupled=decoupled)
        response = await asyncio.wait_for(answer, self._parameters.stall_seconds)
        if not decoupled:
            _raise_error(response)
        return response

    def _submit(
        self, stage: str, inputs: Iterable[Any], outputs: Iterable[str], request_id: str, *, decoupled: bool
    ) -> Any:
        """A future of a stage's response, or of the iterator over its responses."""
        call = pb_utils.InferenceRequest(
            model_name=f"{self.family}_{stage}",
            request_id=request_id,
            inputs=list(inputs),
            requested_output_names=list(outputs),
        )
        return asyncio.ensure_future(call.async_exec(decoupled=True) if decoupled else call.async_exec())

    async def _alive(self, stage: str, answer: Awaitable[Any]) -> Any:
        return await while_alive(stage, answer, lambda: self._ping(stage))

    async def _ping(self, stage: str) -> None:
        """Raises what Triton answers for a stage that has died. It takes a second: who waits shares the question."""
        if stage not in self._pings:
            self._pings[stage] = asyncio.ensure_future(self._ask(stage))
            self._pings[stage].add_done_callback(lambda _: self._pings.pop(stage))
        await asyncio.shield(self._pings[stage])

    async def _ask(self, stage: str) -> None:
        is_talker = stage == "talker"
        try:
            response = await self._call(
                stage, tensors(ping_inputs(stage)), (PING_OUTPUT[stage],), NOBODY, decoupled=is_talker
            )
            if is_talker:
                for part in await asyncio.get_running_loop().run_in_executor(self._threads, list, iter(response)):
                    _raise_error(part)
        except Exception:
            self._died.add(stage)
            raise
        self._died.discard(stage)

    async def _each(self, chunks: Iterator[Any]) -> AsyncIterator[Any]:
        """The talker's responses."""
        loop = asyncio.get_running_loop()
        while True:
            waiting = loop.run_in_executor(self._threads, next, chunks, END)
            alive = self._alive("talker", waiting)
            chunk = await asyncio.wait_for(alive, self._parameters.stall_seconds)
            if chunk is END:
                return
            self._died.discard("talker")
            yield chunk

    async def _watch(self, reply: Reply, stream_id: Any, request_id: str) -> None:
        while not reply.ended:
            # Again and again, for a talker that has not begun with the stream knows nothing of it.
            if reply.is_cancelled():
                await self._cancel(stream_id, request_id)
            await asyncio.sleep(CANCEL_POLL_SECONDS)

    async def _cancel(self, stream_id: Any, request_id: str) -> None:
        """Tells the talker to stop; it ends its stream with ``cancelled``, which frees the codec's slot too."""
        try:
            control = pb_utils.Tensor("CONTROL", text_array("cancel"))
            answers = await self._call("talker", [control, stream_id], ("STREAM_ID",), request_id, decoupled=True)
            async for answer in self._each(iter(answers)):
                _raise_error(answer)
        except Exception:
            log.exception("request %s: the talker could not be told to stop", request_id)

    async def _release(self, stream_id: Any, request_id: str) -> None:
        try:
            control = pb_utils.Tensor("CONTROL", text_array("release"))
            await self._call("codec", [control, stream_id], ("SAMPLE_RATE",), request_id)
        except Exception:
            log.exception("request %s: the codec's slot could not be released", request_id)


def _no_place(seconds: float) -> SpeechError:
    text = f"the talker is full: no place came free within {seconds:g} s; try again in a moment"
    return SpeechError("UNAVAILABLE", text)


def _raise_error(response: Any) -> None:
    if response.has_error():
        raise SpeechError.from_text(response.error().message())
    if told := _text(response, "ERROR"):
        raise SpeechError.from_text(told)


def _is_last(chunk: Any) -> bool:
    return bool(_text(chunk, "FINISH_REASON"))


def _text(response: Any, name: str) -> str:
    """The one string of an output; empty where there is none."""
    texts = [bytes(t.as_numpy().reshape(-1)[0]).decode() for t in response.output_tensors() if t.name() == name]
    return texts[0] if texts else ""
