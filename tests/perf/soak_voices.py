"""The soak's stored voices: some that stay, and some that are replaced and removed all the time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator

from soak_kills import Kills
from soak_streams import RECORDINGS, RESTLESS, STABLE_RECORDINGS, TAKES
from soak_tally import Tally

from triton_speech_client import AsyncSpeechClient
from triton_speech_client.errors import SpeechClientError

RETRY_SECONDS = 0.5


async def store_voices(url: str) -> None:
    """All of them, before the load."""
    async with AsyncSpeechClient(url, retries=0) as client:
        for name, recordings in STABLE_RECORDINGS.items():
            await client.add_voice(name, **recordings)
        for name, take in zip(RESTLESS, itertools.cycle(TAKES)):
            await client.add_voice(name, reference=RECORDINGS[take])


class Restless:
    """Replaces and removes voices. What a kill has left in doubt is not judged until it is known again."""

    def __init__(self, url: str, source: random.Random, tally: Tally, kills: Kills) -> None:
        self._url = url
        self._source = source
        self._tally = tally
        self._kills = kills
        self._there: dict[str, bool | None] = dict.fromkeys(RESTLESS, True)
        """None for a voice whose last change failed."""

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Until the block ends; then all voices are there."""
        over = asyncio.Event()
        task = asyncio.create_task(self._change_until(over))
        try:
            yield
        finally:
            over.set()
            await task

    async def _change_until(self, over: asyncio.Event) -> None:
        async with AsyncSpeechClient(self._url, retries=0) as client:
            while not over.is_set():
                await self._change(client, self._source.choice(RESTLESS), may_remove=True)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(over.wait(), self._source.uniform(0.1, 0.6))
            while missing := [name for name, is_there in self._there.items() if not is_there]:
                if not await self._change(client, missing[0], may_remove=False):
                    await asyncio.sleep(RETRY_SECONDS)

    async def _change(self, client: AsyncSpeechClient, name: str, *, may_remove: bool) -> bool:
        was_there, began = self._there[name], time.monotonic()
        removes = may_remove and was_there and self._source.random() < 0.2
        self._there[name] = None
        try:
            if removes:
                await client.remove_voice(name)
            else:
                added = await client.add_voice(name, reference=RECORDINGS[self._source.choice(TAKES)])
                if was_there is not None and added.replaced != was_there:
                    self._tally.fault(f"{name} was replaced: {added.replaced}")
        except SpeechClientError as error:
            if not self._kills.explain_voices(began, error):
                self._tally.fault(f"{name} could not be changed: {error!r}")
            return False
        self._there[name] = not removes
        self._tally.counts["voices removed" if removes else "voices added"] += 1
        return True
