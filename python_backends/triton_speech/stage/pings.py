"""Asking stages whether they live, where the question may be lost together with the stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

AGAIN_SECONDS = 0.5
OVERTAKING_SECONDS = 0.5
"""A stage answers in the order in which it was asked, give or take so much."""


class StageReplacedError(Exception):
    """Another process answers than the one that was asked first: what that one had begun is lost."""


@dataclass(eq=False)
class _Ping:
    """``asked`` as ``time.monotonic``."""

    asked: float
    answer: asyncio.Future[Any]


class Pings:
    """Questions to stages. Who waits for the same stage shares one: a dead stage keeps each for a second.

    A question that a stage has taken and dies with is never answered. So it is asked again, and where the later
    question is answered and the earlier one is not, the stage was replaced in between.

    Args:
        ask: asks a stage, by name, something that it answers at once; raises what Triton says of one that has died.
    """

    def __init__(self, ask: Callable[[str], Awaitable[Any]]) -> None:
        self._ask = ask
        self._newest: dict[str, _Ping] = {}
        self._lost: dict[str, float] = {}
        """By stage, when it was last asked without success: what it had begun until then is lost."""

    async def check(self, stage: str, since: float) -> None:
        """Returns when the stage has answered.

        Args:
            since: when the work was handed to the stage that the caller waits for, as ``time.monotonic``.

        Raises:
            StageReplacedError: another process answers than the one that had the work.
            Exception: what ``ask`` raises.
        """
        if since <= self._lost.get(stage, since - 1):
            raise StageReplacedError(stage)
        first = self._running(stage)
        later: list[_Ping] = []
        while not first.answer.done():
            answers = {ping.answer for ping in (first, *later)}
            await asyncio.wait(answers, timeout=AGAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            answered = next((ping for ping in later if ping.answer.done()), None)
            if answered is not None:
                await self._compare(stage, first, answered, since)
                return
            if not first.answer.done() and (newest := self._running(stage)) not in (first, *later):
                later.append(newest)
        first.answer.result()

    async def _compare(self, stage: str, first: _Ping, answered: _Ping, since: float) -> None:
        """Tells of the stage by a later question that it has answered before the first."""
        answered.answer.result()
        await asyncio.wait({first.answer}, timeout=OVERTAKING_SECONDS)
        if first.answer.done():
            first.answer.result()
            return
        self._has_lost(stage, first)
        if since <= first.asked:
            raise StageReplacedError(stage)

    def _running(self, stage: str) -> _Ping:
        """The latest question while it is fresh, or a new one."""
        now, newest = time.monotonic(), self._newest.get(stage)
        if newest is None or newest.answer.done() or now - newest.asked >= AGAIN_SECONDS:
            newest = self._newest[stage] = _Ping(now, asyncio.ensure_future(self._ask(stage)))
            newest.answer.add_done_callback(lambda answer: self._note(stage, newest, answer))
        return newest

    def _note(self, stage: str, ping: _Ping, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled() and answer.exception() is not None:
            self._has_lost(stage, ping)

    def _has_lost(self, stage: str, ping: _Ping) -> None:
        self._lost[stage] = max(ping.asked, self._lost.get(stage, ping.asked))
