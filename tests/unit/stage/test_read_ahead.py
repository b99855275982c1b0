"""Responses that are read ahead of their user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from triton_speech.stage.read_ahead import END, read_ahead


def reader(*steps: Any) -> tuple[Callable[[], Awaitable[Any]], list[Any]]:
    """Gives one step after the other, or raises it; and the list of those that are left."""
    left = list(steps)

    async def read() -> Any:
        await asyncio.sleep(0)
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    return read, left


async def until_empty(left: list[Any]) -> None:
    while left:
        await asyncio.sleep(0)


def test_all_comes_in_order_also_to_a_slow_user() -> None:
    async def check() -> None:
        read, left = reader(1, 2, 3, END)
        used = []
        async for one in read_ahead(read):
            await until_empty(left)
            used.append(one)
        assert used == [1, 2, 3]

    asyncio.run(check())


def test_a_slow_codec_does_not_keep_the_death_of_the_talker_from_the_caller() -> None:
    async def check() -> None:
        read, left = reader(1, 2, 3, RuntimeError("has died"))
        responses = read_ahead(read)
        assert await anext(responses) == 1
        await until_empty(left)
        with pytest.raises(RuntimeError, match="has died"):
            await anext(responses)

    asyncio.run(check())


def test_what_is_left_early_is_still_read_to_its_end() -> None:
    async def check() -> None:
        read, left = reader(1, 2, 3, END)
        responses = read_ahead(read)
        async for one in responses:
            assert one == 1
            break
        await responses.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(until_empty(left), 30)

    asyncio.run(check())
