"""Questions to a stage that may be lost together with it."""

from __future__ import annotations

import asyncio
import time

import pytest

from triton_speech.stage import pings
from triton_speech.stage.pings import Pings, StageReplacedError


class Stage:
    """Takes questions, and answers those that it is told to, in any order."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[None]] = []

    async def ask(self, stage: str) -> None:
        question: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append(question)
        await question

    async def has(self, number: int) -> None:
        """Until it has been asked so often."""
        while len(self.asked) < number:
            await asyncio.sleep(0.001)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """It is asked again soon."""
    monkeypatch.setattr(pings, "AGAIN_SECONDS", 0.05)
    return Stage()


def test_a_question_that_died_with_its_stage_is_asked_again_and_tells_of_the_death(stage: Stage) -> None:
    async def check() -> None:
        checking = asyncio.ensure_future(Pings(stage.ask).check("codec", time.monotonic()))
        await stage.has(2)
        stage.asked[1].set_result(None)
        with pytest.raises(StageReplacedError):
            await asyncio.wait_for(checking, 30)

    asyncio.run(check())


def test_a_stage_that_is_slow_and_answers_in_its_order_was_not_replaced(stage: Stage) -> None:
    async def check() -> None:
        checking = asyncio.ensure_future(Pings(stage.ask).check("codec", time.monotonic()))
        await stage.has(2)
        for question in stage.asked:
            question.set_result(None)
        await asyncio.wait_for(checking, 30)

    asyncio.run(check())


def test_a_second_question_that_is_refused_tells_what_the_first_did_not(stage: Stage) -> None:
    async def check() -> None:
        checking = asyncio.ensure_future(Pings(stage.ask).check("codec", time.monotonic()))
        await stage.has(2)
        stage.asked[1].set_exception(RuntimeError("is not ready"))
        with pytest.raises(RuntimeError, match="is not ready"):
            await asyncio.wait_for(checking, 30)

    asyncio.run(check())


def test_work_that_the_new_process_has_is_not_taken_for_lost_with_the_old_one(stage: Stage) -> None:
    async def check() -> None:
        shared = Pings(stage.ask)
        old = asyncio.ensure_future(shared.check("codec", time.monotonic()))
        await stage.has(1)
        new = asyncio.ensure_future(shared.check("codec", time.monotonic()))
        await stage.has(2)
        stage.asked[-1].set_result(None)
        with pytest.raises(StageReplacedError):
            await asyncio.wait_for(old, 30)
        for question in stage.asked[1:]:
            if not question.done():
                question.set_result(None)
        await asyncio.wait_for(new, 30)

    asyncio.run(check())


def test_work_from_before_a_death_that_others_noticed_is_told_as_lost(stage: Stage) -> None:
    async def check() -> None:
        shared, since = Pings(stage.ask), time.monotonic()
        noticing = asyncio.ensure_future(shared.check("talker", since))
        await stage.has(1)
        stage.asked[0].set_exception(RuntimeError("is not healthy"))
        with pytest.raises(RuntimeError):
            await asyncio.wait_for(noticing, 30)
        with pytest.raises(StageReplacedError):
            await shared.check("talker", since)

    asyncio.run(check())


def test_who_waits_for_the_same_stage_shares_a_question() -> None:
    async def check() -> None:
        stage = Stage()
        shared, since = Pings(stage.ask), time.monotonic()
        checking = [asyncio.ensure_future(shared.check("codec", since)) for _ in range(8)]
        await stage.has(1)
        stage.asked[0].set_result(None)
        await asyncio.wait_for(asyncio.gather(*checking), 30)
        assert len(stage.asked) == 1

    asyncio.run(check())
