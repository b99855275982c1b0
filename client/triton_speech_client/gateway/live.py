"""``WS /v1/audio/speech/stream``: text in pieces, audio as soon as a segment of it is complete.

docs/gateway.md describes the events. One session speaks its utterances one after another, in one voice.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
from fastapi import WebSocket
from pydantic import Field
from starlette.websockets import WebSocketDisconnect

from triton_speech.segments import MAX_CHARS, Segmenter
from triton_speech_client.aio_client import AsyncSpeechClient
from triton_speech_client.gateway.access import Caller
from triton_speech_client.gateway.body import FormatName, VoiceOptions, check_fields, parse_json
from triton_speech_client.gateway.encoding import Encoder
from triton_speech_client.gateway.errors import ApiError, api_error, invalid, retry_after
from triton_speech_client.gateway.speech import Gateway
from triton_speech_client.request import SpeechOptions

Event: TypeAlias = dict[str, Any]

PIECES_AHEAD = 32
"""Audio that waits for a slow reader before Triton is read no further."""
MAX_WAITING = 16
"""Utterances that wait for the one that is spoken."""
CLOSE_GOING_AWAY = 1001


class LiveOptions(VoiceOptions):
    """``session.config``."""

    response_format: FormatName = "pcm"
    max_segment_chars: int = Field(default=MAX_CHARS, ge=8, le=2000)


@dataclass
class LiveUtterance:
    """What was said to be spoken as one: its text's segments, None at their end."""

    number: int
    segmenter: Segmenter
    segments: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    characters: int = 0

    def add(self, segments: list[str]) -> None:
        for segment in segments:
            self.segments.put_nowait(segment)


class LiveSession:
    """One connection. Raises ``ApiError`` 503 where the gateway has too many."""

    def __init__(self, gateway: Gateway, socket: WebSocket, caller: Caller) -> None:
        limit = gateway.settings.max_sessions
        if gateway.metrics.open_sessions >= limit:
            text = f"the gateway has {limit} live sessions, as many as it may"
            raise ApiError(503, text, code="overloaded", headers=retry_after())
        self._gateway = gateway
        self._socket = socket
        self._caller = caller
        self._id = socket.state.request_id
        self._options = LiveOptions(seed=secrets.randbits(63))
        self._client: AsyncSpeechClient | None = None
        self._speech: SpeechOptions = {}
        self._count = 0
        self._open: LiveUtterance | None = None
        self._spoken: LiveUtterance | None = None
        self._waiting: asyncio.Queue[LiveUtterance] = asyncio.Queue(MAX_WAITING)
        self._speaking: asyncio.Task[None] | None = None
        self._is_making = False

    async def run(self) -> None:
        """Serves the accepted connection to its end."""
        with self._gateway.metrics.session():
            try:
                await self._send({"type": "session.created", "session": self._id})
                await self._read_events()
            except WebSocketDisconnect:
                pass
            finally:
                await self._stop()

    async def _read_events(self) -> None:
        while True:
            message = None
            with anyio.move_on_after(self._gateway.settings.idle_seconds):
                message = await self._socket.receive()
            if message is None:
                if not self._is_making:
                    await self._socket.close(CLOSE_GOING_AWAY, "idle")
                    return
                continue
            if message["type"] == "websocket.disconnect":
                return
            try:
                await self._take(message.get("text"))
            except WebSocketDisconnect:
                raise
            except Exception as error:
                await self._send_error(error, self._open)

    async def _take(self, text: str | None) -> None:
        if text is None:
            raise ApiError(400, "binary messages are not taken; events are JSON text", code="invalid_event")
        event = parse_json(text)
        kind = event.pop("type", None)
        handlers: dict[str, Callable[[Event], Awaitable[None]]] = {
            "session.config": self._configure,
            "input.text": self._input_text,
            "input.flush": self._input_flush,
            "input.done": self._input_done,
            "input.cancel": self._input_cancel,
        }
        handler = handlers.get(kind) if isinstance(kind, str) else None
        if handler is None:
            raise invalid("type", f"is not one of {', '.join(handlers)}", "invalid_event")
        await handler(event)

    async def _configure(self, event: Event) -> None:
        if self._open is not None or self._spoken is not None or not self._waiting.empty():
            raise ApiError(400, "session.config: not while an utterance is open or spoken", code="invalid_event")
        options: LiveOptions = check_fields(LiveOptions, event, True)
        if options.seed is None:
            options = options.model_copy(update={"seed": self._options.seed})
        client = await self._gateway.catalog.speaker(options.model)
        self._speech = await self._gateway.options(options)
        self._client, self._options = client, options
        await self._send({"type": "session.configured", "model": client.pipeline, "seed": options.seed})

    async def _input_text(self, event: Event) -> None:
        text = event.get("text")
        if not isinstance(text, str):
            raise invalid("text", "is not a string")
        utterance = self._open
        limit = self._gateway.settings.max_characters
        if (utterance.characters if utterance else 0) + len(text) > limit:
            raise invalid("text", f"an utterance has at most {limit} characters", "string_above_max_length")
        if utterance is None:
            utterance = await self._begin()
        utterance.characters += len(text)
        utterance.add(utterance.segmenter.push(text))

    async def _begin(self) -> LiveUtterance:
        if self._client is None:
            self._client = await self._gateway.catalog.speaker(None)
            self._speech = await self._gateway.options(self._options)
        if self._waiting.full():
            raise ApiError(429, f"{MAX_WAITING} utterances wait already", code="rate_limit_exceeded")
        self._count += 1
        self._open = LiveUtterance(self._count, Segmenter(self._options.max_segment_chars))
        self._waiting.put_nowait(self._open)
        if self._speaking is None:
            self._speaking = asyncio.create_task(self._speak_all())
        return self._open

    async def _input_flush(self, _event: Event) -> None:
        if self._open is not None:
            self._open.add(self._open.segmenter.flush())

    async def _input_done(self, event: Event) -> None:
        if self._open is None:
            raise ApiError(400, "input.done: no utterance is open", code="invalid_event")
        await self._input_flush(event)
        self._open.segments.put_nowait(None)
        self._open = None

    async def _input_cancel(self, _event: Event) -> None:
        """Barge-in: nothing of what was said before is heard after the answer to this."""
        await self._stop()
        cancelled = [] if self._spoken is None else [self._spoken]
        while not self._waiting.empty():
            cancelled.append(self._waiting.get_nowait())
        self._spoken = self._open = None
        for utterance in cancelled:
            await self._send(_utterance_done(utterance, "cancelled", None, 0))
        await self._send({"type": "input.cancelled", "utterances": [one.number for one in cancelled]})

    async def _stop(self) -> None:
        speaking, self._speaking = self._speaking, None
        if speaking is not None:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)

    async def _speak_all(self) -> None:
        while True:
            utterance = self._spoken = await self._waiting.get()
            try:
                await self._speak(utterance)
            except WebSocketDisconnect:
                return  # the reader notices it as well
            except Exception as error:
                if self._open is utterance:
                    self._open = None
                await self._send_error(error, utterance)
                await self._send(_utterance_done(utterance, "failed", None, 0))
            self._spoken = None

    async def _speak(self, utterance: LiveUtterance) -> None:
        """Sends what ``_make`` makes ahead of it, so that the next segment is made while this one is heard."""
        ready: asyncio.Queue[Event | bytes | Exception | None] = asyncio.Queue(PIECES_AHEAD)

        async def make() -> None:
            try:
                await self._make(utterance, ready)
                await ready.put(None)
            except Exception as error:
                await ready.put(error)

        making = asyncio.create_task(make())
        try:
            while (item := await ready.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                await self._send(item)
                if isinstance(item, dict) and item["type"] == "utterance.done":
                    self._spoken = None
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)

    async def _make(self, utterance: LiveUtterance, ready: asyncio.Queue[Any]) -> None:
        metrics, name = self._gateway.metrics, self._caller.name
        encoder: Encoder | None = None
        index = 0
        assert self._client is not None
        with self._caller.utterance(), metrics.utterance(name):
            while (text := await utterance.segments.get()) is not None:
                self._caller.spend(len(text))
                metrics.characters.labels(name).inc(len(text))
                request_id = f"{self._id}-{utterance.number}-{index}"
                place = {"utterance": utterance.number, "segment": index}
                samples, reason, rate = 0, "", 0
                self._is_making = True
                chunks = self._client.stream(text, request_id=request_id, pcm16=True, **self._speech)
                try:
                    async with aclosing(chunks):
                        async for chunk in chunks:
                            if encoder is None:
                                encoder = self._encoder(chunk.sample_rate)
                                await ready.put(self._utterance_started(utterance, encoder))
                            if not rate:
                                rate = chunk.sample_rate
                                await ready.put({"type": "segment.started", **place, "text": text})
                            samples += len(chunk.samples)
                            reason = chunk.finish_reason
                            if piece := encoder.add(chunk.samples):
                                await ready.put(piece)
                finally:
                    self._is_making = False
                seconds = round(samples / rate / self._options.speed, 3) if rate else 0.0
                await ready.put({"type": "segment.done", **place, "seconds": seconds, "finish_reason": reason})
                index += 1
            if encoder is not None:
                if piece := encoder.end():
                    await ready.put(piece)
                metrics.audio.inc(encoder.seconds)
            await ready.put(_utterance_done(utterance, "completed", encoder, index))

    def _encoder(self, sample_rate: int) -> Encoder:
        options = self._options
        return Encoder(options.audio_format, sample_rate, options.sample_rate, options.speed)

    def _utterance_started(self, utterance: LiveUtterance, encoder: Encoder) -> Event:
        options = self._options
        return {
            "type": "utterance.started",
            "utterance": utterance.number,
            "format": options.response_format,
            "media_type": options.audio_format.media_type,
            "sample_rate": encoder.output_rate,
        }

    async def _send_error(self, error: Exception, utterance: LiveUtterance | None) -> None:
        event = {"type": "error", "utterance": utterance.number if utterance else None}
        await self._send(event | api_error(error, self._id).body())

    async def _send(self, item: Event | bytes) -> None:
        try:
            with anyio.fail_after(self._gateway.settings.stall_seconds):
                if isinstance(item, bytes):
                    await self._socket.send_bytes(item)
                else:
                    await self._socket.send_text(json.dumps(item, ensure_ascii=False))
        except (TimeoutError, RuntimeError) as error:  # too slow, or closed already
            raise WebSocketDisconnect(CLOSE_GOING_AWAY, "the reader took nothing for too long") from error


def _utterance_done(utterance: LiveUtterance, status: str, encoder: Encoder | None, segments: int) -> Event:
    return {
        "type": "utterance.done",
        "utterance": utterance.number,
        "status": status,
        "seconds": round(encoder.seconds, 3) if encoder else 0.0,
        "segments": segments,
    }
