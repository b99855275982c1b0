"""The two ways to a server: gRPC, and OpenAI's endpoint of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_speech_client.aio_client import AsyncSpeechClient
from triton_speech_client.bench.streams import Job, Piece, Speaker
from triton_speech_client.errors import DeadlineExceeded, ServerError, ServerUnavailable

_BUSY = (429, 503)


@dataclass(frozen=True)
class Target:
    """Whom to ask, and how: ``url`` is host:port of gRPC, or the gateway's where ``gateway`` is true.

    ``options`` are fields of ``SpeechOptions`` without the seed. ``deadline`` is in seconds.
    """

    url: str
    pipeline: str = "voxcpm2"
    gateway: bool = False
    api_key: str = ""
    deadline: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def connect(self) -> Speaker:
        """A connection of its own."""
        return GatewaySpeaker(self) if self.gateway else GrpcSpeaker(self)


class GrpcSpeaker:
    """Triton itself."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client = AsyncSpeechClient(target.url, target.pipeline, retries=0)

    async def speak(self, job: Job) -> AsyncIterator[Piece]:
        chunks = self._client.stream(
            job.text, seed=job.seed, pcm16=True, deadline=self._target.deadline, **self._target.options
        )
        async for chunk in chunks:
            yield Piece(chunk.duration, chunk.finish_reason)

    async def close(self) -> None:
        await self._client.close()


class GatewaySpeaker:
    """The gateway's ``/v1/audio/speech`` as raw samples, which has no finish reason."""

    def __init__(self, target: Target) -> None:
        import aiohttp

        self._aiohttp = aiohttp
        self._target = target
        self._url = f"{target.url.rstrip('/')}/v1/audio/speech"
        self._session: aiohttp.ClientSession | None = None

    async def speak(self, job: Job) -> AsyncIterator[Piece]:
        aiohttp, target = self._aiohttp, self._target
        if self._session is None:
            headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
            self._session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))
        body = {"model": target.pipeline, "input": job.text, "response_format": "pcm", "seed": job.seed}
        limit = aiohttp.ClientTimeout(total=target.deadline, sock_read=60)
        try:
            async with self._session.post(self._url, json=body | dict(target.options), timeout=limit) as answer:
                if answer.status != 200:
                    text = f"HTTP {answer.status}: {(await answer.text())[:200]}"
                    raise ServerUnavailable(text) if answer.status in _BUSY else ServerError(text)
                rate, rest = int(answer.headers["X-Sample-Rate"]), 0
                async for data in answer.content.iter_any():
                    samples, rest = divmod(len(data) + rest, 2)
                    yield Piece(samples / rate)
        except asyncio.TimeoutError as e:
            raise DeadlineExceeded("the gateway did not answer in time") from e
        except aiohttp.ClientError as e:
            raise ServerUnavailable(f"the connection to the gateway at {target.url} failed: {e}") from e

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
