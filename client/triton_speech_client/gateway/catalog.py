"""What the Triton server offers, remembered for a moment, and the clients that speak to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from triton_speech_client.aio_client import AsyncSpeechClient
from triton_speech_client.errors import ServerUnavailable, SpeechClientError
from triton_speech_client.gateway.errors import ApiError
from triton_speech_client.gateway.settings import GatewaySettings
from triton_speech_client.voices import Recordings, Voice

REMEMBER_SECONDS = 5.0
DEFAULT_VOICE = "default"
"""The server's own, which is built in."""


class Catalog:
    """Pipelines by the names that callers use. Belongs to one event loop."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._clients: dict[str, AsyncSpeechClient] = {}
        self._pipelines: list[str] = []
        self._read_at = -REMEMBER_SECONDS
        self._reading = asyncio.Lock()
        self._voices: set[str] = set()
        self._voices_read_at = -REMEMBER_SECONDS
        self._voices_reading: asyncio.Task[None] | None = None

    async def open(self) -> bool:
        """Connects, and learns what is there; whether a pipeline is ready."""
        await self._read_voices()
        return await self.is_ready()

    async def close(self) -> None:
        if self._voices_reading is not None:
            self._voices_reading.cancel()
        for client in self._clients.values():
            await client.close()

    def client(self, pipeline: str) -> AsyncSpeechClient:
        """The client of a pipeline; all requests for it share its connection."""
        if pipeline not in self._clients:
            # The gateway's callers decide themselves whether they try again.
            self._clients[pipeline] = AsyncSpeechClient(self._settings.triton, pipeline, retries=0)
        return self._clients[pipeline]

    async def pipelines(self, longest: float = REMEMBER_SECONDS) -> list[str]:
        """The pipelines that are ready, as of ``longest`` seconds ago at most; raises what the client raises."""
        async with self._reading:
            if time.monotonic() - self._read_at >= longest:
                self._pipelines = await self.client(self._settings.model).pipelines()
                self._read_at = time.monotonic()
        return self._pipelines

    async def models(self) -> list[str]:
        """The names to call: pipelines, and aliases of the default one."""
        pipelines = await self.pipelines()
        aliases = [name for name in self._settings.model_aliases if name not in pipelines]
        return [*pipelines, *(aliases if pipelines else ())]

    async def speaker(self, model: str | None) -> AsyncSpeechClient:
        """The client of the pipeline that a request's ``model`` means; None means the default one.

        Raises:
            ApiError: 404 for a model that is not offered.
        """
        is_alias = model is None or model in self._settings.model_aliases
        name = self._settings.model if is_alias else str(model)
        # A name that was there a while ago is still the one meant; Triton itself says if it is gone.
        if name in self._pipelines:
            return self.client(name)
        # A wrong name must not cost Triton a list of its models each time.
        offered = await self.pipelines(longest=1.0)
        if not is_alias and model in offered:
            return self.client(model or "")
        if not offered:
            raise ServerUnavailable("no pipeline is ready")
        if is_alias:
            return self.client(name if name in offered else offered[0])
        known = ", ".join(offered)
        raise ApiError(404, f"model: {name!r} is not offered; known are {known}", param="model", code="model_not_found")

    async def is_ready(self) -> bool:
        """Whether a pipeline takes requests now."""
        try:
            return bool(await self.pipelines(longest=1.0))
        except SpeechClientError:
            return False

    def voice(self, name: str | None) -> str | None:
        """The stored voice that ``name`` means, None for the default one."""
        if name not in self._settings.voice_aliases:
            return name
        # The list may have to wait for a voice that is being made, and no speech may wait for that.
        if time.monotonic() - self._voices_read_at >= REMEMBER_SECONDS and self._voices_reading is None:
            self._voices_reading = asyncio.create_task(self._read_voices())
        return name if name in self._voices else None

    def voice_list(self, names: Sequence[str] | None) -> str | list[str] | None:
        """The same for what a request names: one, several, or none. In a list the default voice has its own name."""
        if names is None or len(names) == 1:
            return self.voice(names[0] if names else None)
        found = [self.voice(name) for name in names]
        return [DEFAULT_VOICE if name is None else name for name in found]

    async def voices(self) -> list[Voice]:
        """All voices of the server; raises what the client raises."""
        voices = await self.client(self._settings.model).voices()
        self._voices = {voice.name for voice in voices}
        self._voices_read_at = time.monotonic()
        return voices

    async def add_voice(self, name: str, recordings: Recordings) -> Voice:
        """Stores a voice; raises what the client raises."""
        voice = await self.client(self._settings.model).add_voice(name, **recordings)
        self._voices.add(name)
        return voice

    async def remove_voice(self, name: str) -> None:
        """Removes a stored voice; raises what the client raises."""
        await self.client(self._settings.model).remove_voice(name)
        self._voices.discard(name)

    async def _read_voices(self) -> None:
        try:
            await self.voices()
        except SpeechClientError:  # a server without stored voices, or none for the moment
            self._voices_read_at = time.monotonic()
        finally:
            self._voices_reading = None
