"""Waiting for a stage that answers later than its ``execute`` returns, or that has more to do before."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SpeechError

log = logging.getLogger(__name__)

PING_SECONDS = 0.5
STOPPING_MARKS = ("Server not ready", "is stopping")
"""What Triton and the stages say once the server is told to stop; it is not a death."""
NOBODY = "ping"
"""No stream has this id."""
PING_OUTPUT = {
    "frontend": "VOICES",
    "reference": "REFERENCE_LATENTS",
    "talker": "STREAM_ID",
    "codec": "SAMPLE_RATE",
}


def has_died(stage: str) -> SpeechError:
    """UNAVAILABLE, for those whose work a stage had begun."""
    return SpeechError("UNAVAILABLE", f"the {stage} stage has died; what it had begun is lost, try again in a moment")


async def while_alive(
    stage: str, answer: Awaitable[Any], ping: Callable[[float], Awaitable[Any]], since: float | None = None
) -> Any:
    """The answer of such a stage.

    When a stage dies, Triton refuses the calls that come later, at once where it is not loaded. Those that wait it
    refuses one after the other, each after a second, and those that the stage had taken it leaves without an answer for
    ever. So a long wait asks it something small, again and again.

    Args:
        ping: is given the moment since which the stage has had the work; ``Pings.check`` of a stage.
        since: that moment (``time.monotonic``); None for now.

    Raises:
        SpeechError: UNAVAILABLE when ``ping`` fails.
    """
    since = time.monotonic() if since is None else since
    waiting = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait({waiting}, timeout=PING_SECONDS))[0]:
            try:
                await ping(since)
            except Exception as error:
                if any(mark in str(error) for mark in STOPPING_MARKS):
                    raise SpeechError("UNAVAILABLE", "the server is stopping") from error
                log.exception("the %s stage does not answer", stage)
                raise has_died(stage) from error
        return waiting.result()
    except BaseException:
        waiting.cancel()
        raise
    finally:
        # An error holds this frame. If this held the error, a request's audio would stay until a garbage collection.
        del waiting


def ping_inputs(stage: str) -> Mapping[str, NDArray[Any]]:
    """What a stage answers at once, without work."""
    if stage == "reference":
        return {"REFERENCE_LATENTS": np.zeros((0, 1, 1), dtype=np.float32)}
    command = {"frontend": "ping", "talker": "cancel", "codec": "release"}[stage]
    inputs = {"CONTROL": command} if stage == "frontend" else {"CONTROL": command, "STREAM_ID": NOBODY}
    return {name: np.array([text.encode()], dtype=np.object_) for name, text in inputs.items()}
