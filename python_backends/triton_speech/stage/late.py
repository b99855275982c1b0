"""Waiting for a stage that answers later than its ``execute`` returns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from ..errors import SpeechError
from .triton import Array, text_array

log = logging.getLogger(__name__)

PING_SECONDS = 0.5
STOPPING_MARKS = ("Server not ready", "is stopping")
"""What Triton and the stages say once the server is told to stop; it is not a death."""
NOBODY = "ping"
"""No stream has this id."""


async def while_alive(stage: str, answer: Awaitable[Any], ping: Callable[[], Awaitable[Any]]) -> Any:
    """The answer of such a stage.

    When a stage dies, Triton refuses the calls that come later, and leaves those that the stage had taken without an
    answer for ever. So a long wait asks it something small, again and again.

    Raises:
        SpeechError: UNAVAILABLE when ``ping`` fails.
    """
    waiting = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait({waiting}, timeout=PING_SECONDS))[0]:
            try:
                await ping()
            except Exception as error:
                if any(mark in str(error) for mark in STOPPING_MARKS):
                    raise SpeechError("UNAVAILABLE", "the server is stopping") from error
                log.exception("the %s stage does not answer", stage)
                raise SpeechError(
                    "UNAVAILABLE", f"the {stage} stage has died; what it had begun is lost, try again in a moment"
                ) from error
    except BaseException:
        waiting.cancel()
        raise
    return waiting.result()


def ping_inputs(stage: str) -> Mapping[str, Array]:
    """What a stage answers at once, without work."""
    if stage == "reference":
        return {"REFERENCE_LATENTS": np.zeros((0, 1, 1), dtype=np.float32)}
    command = {"talker": "cancel", "codec": "release"}[stage]
    return {"CONTROL": text_array(command), "STREAM_ID": text_array(NOBODY)}
