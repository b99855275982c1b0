"""``POST /v1/audio/speech``: one text in, one audio file out while it is being made."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import anyio
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from triton_speech_client.errors import ServerError
from triton_speech_client.gateway.access import Access, Caller
from triton_speech_client.gateway.body import SpeechBody, VoiceOptions
from triton_speech_client.gateway.catalog import Catalog
from triton_speech_client.gateway.encoding import Encoder
from triton_speech_client.gateway.errors import api_error, invalid, log
from triton_speech_client.gateway.metrics import Metrics
from triton_speech_client.gateway.references import UrlFetcher, recording_bytes, recording_list
from triton_speech_client.gateway.settings import GatewaySettings
from triton_speech_client.request import SpeechOptions

# Of proxies, nginx would collect the stream; no cache may keep people's texts as speech.
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(frozen=True)
class Gateway:
    """What all routes share."""

    settings: GatewaySettings
    access: Access
    catalog: Catalog
    metrics: Metrics
    fetcher: UrlFetcher | None

    @classmethod
    def of(cls, settings: GatewaySettings) -> Gateway:
        access = Access(settings.keys, settings.max_concurrent)
        return cls(settings, access, Catalog(settings), Metrics(), UrlFetcher() if settings.reference_urls else None)

    def check_length(self, text: str) -> None:
        """Raises ``ApiError`` 400 for a text that is longer than a request may have."""
        limit = self.settings.max_characters
        if len(text) > limit:
            problem = f"has {len(text)} characters, at most {limit} are allowed"
            raise invalid("input", problem, "string_above_max_length")

    async def options(self, fields: VoiceOptions) -> SpeechOptions:
        """The request for Triton that the fields ask for; raises ``ApiError`` for a recording that is none."""
        return SpeechOptions(
            voice=self.catalog.voice_list(fields.voice_names),
            reference=await recording_list("reference_audio", fields.reference_audio, self.fetcher),
            prompt_audio=await recording_bytes("prompt_audio", fields.prompt_audio, self.fetcher),
            prompt_text=fields.prompt_text,
            instruction=fields.instructions,
            language=fields.language,
            seed=fields.seed,
            cfg_value=fields.cfg_value,
            inference_steps=fields.inference_steps,
            temperature=fields.temperature,
            top_k=fields.top_k,
            top_p=fields.top_p,
            repetition_penalty=fields.repetition_penalty,
            codes_temperature=fields.codes_temperature,
            codes_top_k=fields.codes_top_k,
            codes_top_p=fields.codes_top_p,
            max_seconds=fields.max_seconds,
        )


@dataclass
class Utterance:
    """One request on its way from Triton to the bytes of its file."""

    gateway: Gateway
    caller: Caller
    body: SpeechBody
    request_id: str
    began: float = field(default_factory=time.perf_counter)
    encoder: Encoder | None = None
    finish_reason: str = ""

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The file, in pieces that are never empty. Closing it cancels the request at Triton."""
        gateway, body = self.gateway, self.body
        gateway.check_length(body.input)
        metrics = gateway.metrics
        with self.caller.utterance(len(body.input)), metrics.utterance(self.caller.name):
            client = await gateway.catalog.speaker(body.model)
            options = await gateway.options(body)
            metrics.characters.labels(self.caller.name).inc(len(body.input))
            chunks = client.stream(body.input, request_id=self.request_id, pcm16=True, **options)
            async with aclosing(chunks):
                async for chunk in chunks:
                    if self.encoder is None:
                        self.encoder = self._encoder(chunk.sample_rate)
                    self.finish_reason = chunk.finish_reason
                    if piece := self.encoder.add(chunk.samples):
                        self._count_first()
                        yield piece
            if self.encoder is None:
                raise ServerError("no speech was generated")
            if piece := self.encoder.end():
                self._count_first()
                yield piece
            metrics.audio.inc(self.encoder.seconds)

    def _encoder(self, sample_rate: int) -> Encoder:
        body = self.body
        whole = not body.stream and body.stream_format == "audio"
        return Encoder(body.audio_format, sample_rate, body.sample_rate, body.speed, whole)

    def _count_first(self) -> None:
        if self.began:
            self.gateway.metrics.first_audio.labels(self.body.response_format).observe(time.perf_counter() - self.began)
            self.began = 0.0


class SpeechResponse(Response):
    """Sends an utterance as raw bytes or as server-sent events, and ends it at once when its reader leaves.

    The status waits for the first bytes, so that an error before them has its own.
    """

    def __init__(self, utterance: Utterance) -> None:
        super().__init__()
        self._utterance = utterance
        self._is_sse = utterance.body.stream_format == "sse"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(scope, receive, send))
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()):
            raise error

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        utterance = self._utterance
        started = False
        async with aclosing(utterance.pieces()) as pieces:
            try:
                async for piece in pieces:
                    if not started:
                        started = True
                        await self._start(send, len(piece))
                    await self._send(send, _delta(piece) if self._is_sse else piece)
                if self._is_sse:
                    await self._send(send, _done(utterance))
            except _StalledError:
                log.info("request %s: its reader took nothing for too long", utterance.request_id)
                return  # without an end, which the server understands as a broken connection
            except Exception as error:
                mended = api_error(error, utterance.request_id)
                if not started:
                    await mended.response()(scope, receive, send)
                    return
                if not self._is_sse:
                    return
                await self._send(send, _event(mended.body(), "error"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send, first: int) -> None:
        utterance = self._utterance
        assert utterance.encoder is not None
        message: Message = {"type": "http.response.start", "status": 200, "headers": []}
        headers = MutableHeaders(scope=message)
        headers.update(STREAM_HEADERS)
        headers["Content-Type"] = "text/event-stream" if self._is_sse else utterance.body.audio_format.media_type
        headers["X-Sample-Rate"] = str(utterance.encoder.output_rate)
        if not utterance.body.stream and not self._is_sse:
            headers["Content-Length"] = str(first)
            headers["X-Finish-Reason"] = utterance.finish_reason
        await send(message)

    async def _send(self, send: Send, data: bytes) -> None:
        try:
            with anyio.fail_after(self._utterance.gateway.settings.stall_seconds):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError as error:
            raise _StalledError from error


class _StalledError(Exception):
    pass


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _delta(piece: bytes) -> bytes:
    return _event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode("ascii")})


def _done(utterance: Utterance) -> bytes:
    seconds = utterance.encoder.seconds if utterance.encoder else 0.0
    usage = {"type": "duration", "seconds": round(seconds, 3), "input_characters": len(utterance.body.input)}
    return _event({"type": "speech.audio.done", "finish_reason": utterance.finish_reason, "usage": usage})


def _event(data: object, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
