"""The front door: binds a pipeline to Triton and admits requests; each is then a stream of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from pydantic import Field

from ..errors import SpeechError, full
from ..families.registry import load_family
from ..parameters import Parameters
from ..wiring import models_of
from . import catalogue
from .metrics import Metrics
from .request_record import RequestRecord, start_request_log
from .speech_stream import SpeechStream, StreamSettings
from .stage_calls import StageCalls
from .tracing import Tracing
from .triton import Reply, respond_error, start_stage

_NO_END = SpeechError("INTERNAL", "the stream had no end")
"""What is counted where nothing else was: a fault of the front door itself."""


class FrontDoorParameters(Parameters):
    max_streams: int = Field(default=64, ge=1)
    """Requests at once; one more is refused."""
    stall_seconds: float = Field(default=30.0, gt=0)
    """A stage that keeps a stream waiting for longer is taken for dead."""
    queue_seconds: float = Field(default=30.0, gt=0)
    """A stream that has not begun within this time gives up: the talker is full."""
    max_ahead_seconds: float = Field(default=120.0, gt=0)
    """A long text's next segment waits while so much audio was made that cannot have been played yet."""
    stages: str = ""
    """Names of the models that make the pipeline, separated by commas; the family's own where there are none."""
    on_request: bool = False
    """For the launcher: to be served only where the pipeline is named."""


class FrontDoorStage:
    """Binds a pipeline to Triton: decoupled, asynchronous, one coroutine for each request."""

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        self._parameters = parameters = FrontDoorParameters.from_triton(args["model_config"])
        # Reading a stream of responses blocks, so each stream holds a thread; they are cheap and mostly asleep.
        # As many again for cancels, which must not wait behind the streams that they end.
        self._threads = ThreadPoolExecutor(2 * parameters.max_streams, thread_name_prefix="stream")
        models = models_of(self.family, parameters.stages)
        self._stages = StageCalls(models, self._threads, parameters.stall_seconds)
        self._settings = StreamSettings(
            tuple(family.SAMPLING_INPUTS),
            parameters.stall_seconds,
            parameters.queue_seconds,
            parameters.max_ahead_seconds,
        )
        self._live = 0
        self._model = args["model_name"]
        start_request_log()
        self._tracing = Tracing(self._model)
        self._metrics = Metrics(catalogue.FRONT_DOOR, args)
        self._metrics.follow(catalogue.LIVE, read=lambda: self._live)

    async def execute(self, requests: list[Any]) -> None:
        # Triton makes its calls on the loop's default threads. A small machine has six of them: as many streams that
        # wait for a slot would keep all others from the codec.
        asyncio.get_running_loop().set_default_executor(self._threads)
        await asyncio.gather(*(self._serve(request) for request in requests))

    def finalize(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._metrics.close()
        self._tracing.close()

    async def _serve(self, request: Any) -> None:
        reply = Reply(request.get_response_sender())
        request_id = request.request_id() or uuid.uuid4().hex
        trace = self._tracing.context(request)
        record = RequestRecord(
            self._model, request_id, self._metrics, is_traced=trace is not None, text_chars=_characters(request)
        )
        try:
            if self._live >= self._parameters.max_streams:
                raise full("the server", self._parameters.max_streams)
            self._live += 1
            try:
                await SpeechStream(self._stages, self._settings, request, reply, request_id, record).speak()
            finally:
                self._live -= 1
        except Exception as error:
            record.failed(error)
            reply.finish(respond_error(error, request_id))
        finally:
            record.failed(_NO_END)
            self._tracing.tell(trace, record)


def _characters(request: Any) -> int:
    """Of TEXT, which nothing has checked yet."""
    texts = [text for tensor in request.inputs() if tensor.name() == "TEXT" for text in tensor.as_numpy().flat]
    return sum(len(bytes(text).decode(errors="replace")) for text in texts)
