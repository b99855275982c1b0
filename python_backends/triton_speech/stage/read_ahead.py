"""Reading a stage's responses ahead of the one who uses them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

END = object()


async def read_ahead(read: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
    """What ``read`` gives, until it gives ``END``.

    It is read as it comes, however slow the user is, so that a failure is told at once: before what has come earlier
    and was not used yet. What is left early is still read to its end.

    Raises:
        Exception: what ``read`` raises.
    """
    came: asyncio.Queue[Any] = asyncio.Queue()
    reading = asyncio.ensure_future(_read(read, came))
    try:
        while (one := await came.get()) is not END:
            if reading.done():
                reading.result()
            yield one
        await reading
    finally:
        reading.add_done_callback(_forget)


async def _read(read: Callable[[], Awaitable[Any]], came: asyncio.Queue[Any]) -> None:
    try:
        while (one := await read()) is not END:
            came.put_nowait(one)
    finally:
        came.put_nowait(END)


def _forget(reading: asyncio.Future[None]) -> None:
    """Nobody waits any more for how it ended."""
    with contextlib.suppress(asyncio.CancelledError):
        reading.exception()
