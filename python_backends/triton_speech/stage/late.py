"""Waiting for a stage that answers later than its ``execute`` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from .triton import Array

PING_SECONDS = 1.0


async def while_alive(answer: Awaitable[Any], ping: Callable[[], Awaitable[Any]]) -> Any:
    """The answer of such a stage, or what ``ping`` raises.

    When a stage dies, Triton refuses the calls that come later, and leaves those that the stage had taken without an
    answer for ever. So a long wait asks it something small, again and again.
    """
    waiting = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait({waiting}, timeout=PING_SECONDS))[0]:
            await ping()
    except BaseException:
        waiting.cancel()
        raise
    return waiting.result()


def ping_inputs() -> Mapping[str, Array]:
    """What the reference stage answers at once, without work."""
    return {"REFERENCE_LATENTS": np.zeros((0, 1, 1), dtype=np.float32)}
