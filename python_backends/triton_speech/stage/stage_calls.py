"""The front door's calls of its family's stages, and what is known of whether these live."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from ..errors import SpeechError
from .late import NOBODY, PING_OUTPUT, ping_inputs, while_alive
from .pings import Pings
from .read_ahead import END, read_ahead
from .triton import tensors, text_array

log = logging.getLogger(__name__)


class StageCalls:
    """Calls of the stages of one family; shared by all streams of a front door.

    Args:
        models: the name of each stage's model.
        threads: for waiting, which blocks.
        stall_seconds: longest wait for one answer.
    """

    def __init__(self, models: Mapping[str, str], threads: Executor, stall_seconds: float) -> None:
        self._models = models
        self._threads = threads
        self._stall_seconds = stall_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._pings = Pings(self._ask)
        self._died: set[str] = set()
        """Stages that have not answered since they failed. Each call of one keeps the next one waiting for a second."""

    async def call(
        self, stage: str, inputs: Iterable[Any], outputs: Iterable[str], request_id: str, *, decoupled: bool = False
    ) -> Any:
        """One call of a stage; its error becomes a SpeechError."""
        answer = self.submit(stage, inputs, outputs, request_id, decoupled=decoupled)
        response = await asyncio.wait_for(answer, self._stall_seconds)
        if not decoupled:
            raise_error(response)
        return response

    def submit(
        self,
        stage: str,
        inputs: Iterable[Any],
        outputs: Iterable[str],
        request_id: str,
        *,
        decoupled: bool,
        timeout: float | None = None,
    ) -> Any:
        """A future of a stage's response, or of the iterator over its responses. The stage is given ``timeout`` s."""
        call = pb_utils.InferenceRequest(
            model_name=self._models[stage],
            request_id=request_id,
            inputs=list(inputs),
            requested_output_names=list(outputs),
            timeout=0 if timeout is None else max(1, round(timeout * 1e6)),
        )
        return asyncio.ensure_future(call.async_exec(decoupled=True) if decoupled else call.async_exec())

    async def call_alive(self, stage: str, inputs: Iterable[Any], outputs: Iterable[str], request_id: str) -> Any:
        """The same for a call that may take longer than its caller should wait to hear of the stage's death."""
        response = await self.alive(stage, self.call(stage, inputs, outputs, request_id))
        self._died.discard(stage)
        return response

    async def alive(self, stage: str, answer: Awaitable[Any], since: float | None = None) -> Any:
        """``answer``, for as long as the stage lives that has had the work since then (None: from now on)."""
        return await while_alive(stage, answer, partial(self._pings.check, stage), since)

    def each(self, chunks: Iterator[Any]) -> AsyncIterator[Any]:
        """The talker's responses. To be read to the end: a dropped iterator leaks shared memory in the 2.51 stub."""
        since = time.monotonic()

        async def read() -> Any:
            waiting = asyncio.get_running_loop().run_in_executor(self._threads, next, chunks, END)
            chunk = await asyncio.wait_for(self.alive("talker", waiting, since), self._stall_seconds)
            if chunk is not END:
                self._died.discard("talker")
            return chunk

        return read_ahead(read)

    async def cancel(self, stream_id: Any, request_id: str) -> None:
        """Tells the talker to stop; it ends its stream with ``cancelled``, which frees the codec's slot too."""
        try:
            control = pb_utils.Tensor("CONTROL", text_array("cancel"))
            answers = await self.call("talker", [control, stream_id], ("STREAM_ID",), request_id, decoupled=True)
            async for answer in self.each(iter(answers)):
                raise_error(answer)
        except Exception:
            log.exception("request %s: the talker could not be told to stop", request_id)

    async def clean_up(self, stream_id: Any, request_id: str) -> None:
        """Ends a stream in those stages that answer."""
        if "talker" not in self._died:
            await self.cancel(stream_id, request_id)
        if "codec" not in self._died:
            await self.release(stream_id, request_id)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` beside the caller. The loop itself holds tasks only weakly."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def release(self, stream_id: Any, request_id: str) -> None:
        """Tells the codec that a stream is over."""
        try:
            control = pb_utils.Tensor("CONTROL", text_array("release"))
            await self.call("codec", [control, stream_id], ("SAMPLE_RATE",), request_id)
        except Exception:
            log.exception("request %s: the codec's slot could not be released", request_id)

    async def _ask(self, stage: str) -> None:
        """Raises what Triton answers for a stage that has died, after a second."""
        is_talker = stage == "talker"
        try:
            response = await self.call(
                stage, tensors(ping_inputs(stage)), (PING_OUTPUT[stage],), NOBODY, decoupled=is_talker
            )
            if is_talker:
                for part in await asyncio.get_running_loop().run_in_executor(self._threads, list, iter(response)):
                    raise_error(part)
        except Exception:
            self._died.add(stage)
            raise
        self._died.discard(stage)


def raise_error(response: Any) -> None:
    """The error that a response is, or tells in its output ERROR, as a SpeechError."""
    if response.has_error():
        raise SpeechError.from_text(response.error().message())
    if told := text_of(response, "ERROR"):
        raise SpeechError.from_text(told)


def number_of(response: Any, name: str) -> float | None:
    """The one number of an output; None where there is none."""
    numbers = [float(t.as_numpy().reshape(-1)[0]) for t in response.output_tensors() if t.name() == name]
    return numbers[0] if numbers else None


def text_of(response: Any, name: str) -> str:
    """The one string of an output; empty where there is none."""
    texts = [bytes(t.as_numpy().reshape(-1)[0]).decode() for t in response.output_tensors() if t.name() == name]
    return texts[0] if texts else ""
