"""One request of the front door: from its inputs through talker and codec to its last chunk."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..errors import TRY_AGAIN, SpeechError, too_late
from ..long_text import LongText
from ..streaming.long_speech import LongSpeech
from .request_record import RequestRecord
from .stage_calls import StageCalls, number_of, raise_error, text_of
from .triton import Array, Reply, deadline_seconds, respond_error, tensors, text_array

AUDIO_OUTPUTS = ("AUDIO", "PCM16", "SAMPLE_RATE", "CHUNK_INDEX", "FINISH_REASON")
# A talker tells its failures as data. Where Triton refuses a call of one that is gone, it may lose the error itself.
NO_END = "the talker stage has died; its stream had no end, try again in a moment"
REFERENCE_INPUTS = ("REFERENCE_AUDIO", "PROMPT_AUDIO")
LATENT_INPUTS = ("REFERENCE_LATENTS", "PROMPT_LATENTS")
FRONTEND_OUTPUTS = ("STREAM_ID", "TOKENS", "SEED", "MAX_FRAMES", "CHUNK_SCHEDULE", "PRIORITY", "LONG_TEXT")
CHUNK_OUTPUTS = ("STREAM_ID", "LATENTS", "SKIP_FRAMES", "CHUNK_INDEX", "FINISH_REASON")
TALKER_OUTPUTS = (*CHUNK_OUTPUTS, "ERROR", "QUEUE_SECONDS")
WATCH_SECONDS = 0.02
LATE_SECONDS = 1.0


@dataclass(frozen=True)
class StreamSettings:
    """What all streams of a front door have in common."""

    sampling: tuple[str, ...]
    """The inputs that the family adds to the contract."""
    stall_seconds: float
    queue_seconds: float
    max_ahead_seconds: float


class SpeechStream:
    """Speaks one request, segment by segment. Each segment is a stream of its own to talker and codec.

    Triton 2.51 tells a cancel to the front door alone, so a watcher polls for it, and for the deadline.

    Args:
        stages: what it calls.
        request: Triton's; it is read, not answered.
        reply: where chunks go, and the one end.
        record: told how it goes.
    """

    def __init__(
        self,
        stages: StageCalls,
        settings: StreamSettings,
        request: Any,
        reply: Reply,
        request_id: str,
        record: RequestRecord,
    ) -> None:
        self._stages = stages
        self._settings = settings
        self._request = request
        self._reply = reply
        self._id = request_id
        self._record = record
        self._requested = [name for name in AUDIO_OUTPUTS if name in request.requested_output_names()]
        self._seconds = deadline_seconds(request)
        self._deadline = None if self._seconds is None else time.monotonic() + self._seconds
        self._streams: list[Array] = []
        """STREAM_ID of each segment that talker or codec may hold a place for: one, or two where they meet."""
        self._opened: asyncio.Future[Any] | None = None
        """The next segment's call of the talker, while the last chunk of the one before is decoded."""
        self._is_due = False
        """A segment has ended that another one is to follow, and that one is not opened yet."""
        self._sent = 0
        self._first_at = 0.0
        self._is_gone = False
        self._left = asyncio.Event()
        """The caller has gone, or the deadline has passed."""

    async def speak(self) -> None:
        """Returns when the caller has been sent its last chunk or an error, and the talker has nothing more to say."""
        # A watcher ends by itself, soon after the reply.
        self._stages.begin(self._watch())
        try:
            self._speech = await self._prepare()
            if self._reply.ended:
                return
            opening: asyncio.Future[Any] | None = self._open()
            while opening is not None:
                with self._record.span("talker"):
                    opening = await self._speak_segment(opening)
            if not self._reply.ended:
                raise SpeechError("UNAVAILABLE", NO_END)
        except Exception as error:
            self._fail(error)

    def _open(self) -> asyncio.Future[Any]:
        """Hands the next segment to the talker."""
        inputs = self._speech.next_inputs()
        self._is_due = False
        self._streams.append(inputs["STREAM_ID"])
        # The talker ends by itself what is late and could not be cancelled.
        timeout = None if self._deadline is None else self._deadline - time.monotonic() + LATE_SECONDS
        opening = self._stages.submit(
            "talker", tensors(inputs), TALKER_OUTPUTS, self._id, decoupled=True, timeout=timeout
        )
        # A call opens with its first response, so this is the wait for a slot.
        return asyncio.ensure_future(self._stages.alive("talker", opening))

    async def _speak_segment(self, opening: asyncio.Future[Any]) -> asyncio.Future[Any] | None:
        """Passes one segment on; returns the opening of the next one, if there is one."""
        with self._record.timing("talker_first_chunk"):
            await asyncio.wait({opening}, timeout=self._settings.queue_seconds)
        if not opening.done():
            self._stages.begin(self._drain(opening))
            raise _no_place(self._settings.queue_seconds)
        # Read to the end even after a failure.
        async for chunk in self._stages.each(iter(await opening)):
            if self._reply.ended:
                continue
            try:
                await self._pass_on(chunk)
            except Exception as error:
                self._fail(error)
        if not self._reply.ended and self._is_due:
            await self._wait_for_caller()
            if not self._left.is_set():
                self._opened = self._open()
            elif not self._reply.ended:
                self._reply.finish(None)
                self._record.finished("cancelled")
        if self._reply.ended:
            return None
        self._streams = self._streams[-1:]
        opened, self._opened = self._opened, None
        return opened

    async def _pass_on(self, chunk: Any) -> None:
        """Turns one of the talker's responses into one for the caller."""
        raise_error(chunk)
        if not chunk.output_tensors():
            return
        finish = text_of(chunk, "FINISH_REASON")
        goes_on = False
        if self._speech.is_long:
            arrays = {tensor.name(): tensor.as_numpy() for tensor in chunk.output_tensors()}
            self._speech.take(arrays["LATENTS"][arrays["SKIP_FRAMES"].item() :], finish)
            self._is_due = goes_on = self._speech.goes_on(finish)
            if goes_on and self._seconds_ahead() <= self._settings.max_ahead_seconds:
                # The talker begins with the next segment while the codec ends this one.
                self._opened = self._open()
        if waited := number_of(chunk, "QUEUE_SECONDS"):
            self._record.took("queue", waited)
        latents = [tensor for tensor in chunk.output_tensors() if tensor.name() in CHUNK_OUTPUTS]
        with self._record.timing("codec_first_chunk", span="codec"):
            audio = await self._stages.call_alive("codec", latents, {*self._requested, "SAMPLE_RATE"}, self._id)
        if self._reply.ended:
            return
        self._record.chunk(_samples(audio.output_tensors()), int(number_of(audio, "SAMPLE_RATE") or 0))
        response = pb_utils.InferenceResponse(self._outputs(audio, finish, goes_on))
        self._first_at = self._first_at or time.monotonic()
        self._sent += 1
        if finish and not goes_on:
            self._reply.finish(response)
            self._record.finished(self._speech.finish_reason(finish))
        else:
            self._reply.send(response)

    def _outputs(self, audio: Any, finish: str, goes_on: bool) -> list[Any]:
        """The codec's outputs, with numbers and end of the whole stream in place of the segment's."""
        made = [tensor for tensor in audio.output_tensors() if tensor.name() in self._requested]
        if not self._speech.is_long:
            return made
        whole = {
            "CHUNK_INDEX": np.array([self._sent], dtype=np.int32),
            "FINISH_REASON": text_array("" if goes_on else self._speech.finish_reason(finish)),
        }
        return [
            pb_utils.Tensor(tensor.name(), whole[tensor.name()]) if tensor.name() in whole else tensor
            for tensor in made
        ]

    def _seconds_ahead(self) -> float:
        """Audio that a caller who began to play at the first chunk still has."""
        return self._speech.seconds - (time.monotonic() - self._first_at if self._first_at else 0.0)

    async def _wait_for_caller(self) -> None:
        """Until it has played enough, or has left. Triton takes every response, however slow its reader is."""
        while (seconds := self._seconds_ahead() - self._settings.max_ahead_seconds) > 0 and not self._left.is_set():
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError), self._record.holding():
                await asyncio.wait_for(self._left.wait(), seconds)

    def _fail(self, error: Exception) -> None:
        """Tells the caller at once; a stage that does not answer must not keep it waiting."""
        told = error
        if not self._reply.ended:
            if self._is_gone:
                # Whatever comes now, such as the codec's answer to a chunk that was given up, follows from that.
                told = SpeechError("CANCELLED", "the caller has left")
            elif isinstance(error, TimeoutError | asyncio.TimeoutError):
                seconds = self._settings.stall_seconds
                told = SpeechError("UNAVAILABLE", f"the server is not ready: no answer of a stage within {seconds:g} s")
            self._record.failed(told)
            self._reply.finish(respond_error(told, self._id))
            for stream in self._streams:
                self._stages.begin(self._stages.clean_up(_stream_id(stream), self._id))
        if self._opened is not None:
            self._stages.begin(self._drain(self._opened))
            self._opened = None
        # Futures hold what they failed with, its frames hold them, and the request with its audio.
        error.__traceback__ = None

    async def _drain(self, opening: asyncio.Future[Any]) -> None:
        """Reads what a stream still sends whose caller has been told already that it will not begin."""
        with contextlib.suppress(SpeechError, TimeoutError, asyncio.TimeoutError):
            async for _ in self._stages.each(iter(await opening)):
                pass

    async def _prepare(self) -> LongSpeech:
        """The frontend's outputs, with the latents of audio where there is any: what the talker is to be given."""
        inputs = self._request.inputs()
        audio = [tensor for tensor in inputs if tensor.name() in REFERENCE_INPUTS]
        outputs = (*FRONTEND_OUTPUTS, *LATENT_INPUTS, *self._settings.sampling)
        text = self._timed("frontend", self._stages.call_alive("frontend", inputs, outputs, self._id))
        if not audio:
            answers = [await text]
        elif any(tensor.name() == "VOICE" and math.prod(tensor.shape()) > 1 for tensor in inputs):
            # Some voices may be stored and some recorded: they are joined where the recordings are encoded.
            prepared = await text
            stored = [tensor for tensor in prepared.output_tensors() if tensor.name() in LATENT_INPUTS]
            answers = [prepared, await self._encode([*audio, *stored])]
        else:
            answers = list(await asyncio.gather(text, self._encode(audio)))
        given = {tensor.name(): tensor.as_numpy() for answer in answers for tensor in answer.output_tensors()}
        rest = LongText.from_json(given.pop("LONG_TEXT").item().decode())
        return LongSpeech(given, rest)

    def _encode(self, inputs: list[Any]) -> Awaitable[Any]:
        return self._timed("reference", self._stages.call_alive("reference", inputs, LATENT_INPUTS, self._id))

    async def _timed(self, what: str, answer: Awaitable[Any]) -> Any:
        with self._record.timing(what):
            return await answer

    async def _watch(self) -> None:
        while not self._reply.ended:
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._left.set()
                self._fail(too_late(self._seconds or 0.0))
            elif self._reply.is_cancelled():
                if not self._left.is_set():
                    self._is_gone = True
                    self._left.set()
                    # The codec may have a long chunk in hand, which the stream's end would wait for.
                    for stream in self._streams:
                        self._stages.begin(self._stages.release(_stream_id(stream), self._id))
                # Again and again, for a talker that has not begun with the stream knows nothing of it.
                for stream in self._streams:
                    await self._stages.cancel(_stream_id(stream), self._id)
            await asyncio.sleep(WATCH_SECONDS)


def _stream_id(stream: Array) -> Any:
    return pb_utils.Tensor("STREAM_ID", stream)


def _samples(made: Iterable[Any]) -> int:
    """Samples of a chunk, in whichever form the caller wants them."""
    return next((math.prod(tensor.shape()) for tensor in made if tensor.name() in ("AUDIO", "PCM16")), 0)


def _no_place(seconds: float) -> SpeechError:
    return SpeechError("UNAVAILABLE", f"the talker is full: no place came free within {seconds:g} s; {TRY_AGAIN}")
