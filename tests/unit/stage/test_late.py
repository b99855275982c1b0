"""Waiting for a stage."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from triton_speech.stage.late import while_alive


class Audio:
    """Stands for what a request brings."""


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_a_request_that_a_stage_refuses_is_let_go_without_a_garbage_collection() -> None:
    """The front door's shared memory held the recordings of two dozen refused requests."""

    async def refuse(audio: Audio) -> None:
        await asyncio.sleep(0)
        raise ValueError(f"{audio} is not allowed")

    async def ping(since: float) -> None:
        raise AssertionError

    async def ask() -> bool:
        audio = Audio()
        held = weakref.ref(audio)
        with pytest.raises(ValueError, match="is not allowed"):
            await while_alive("reference", refuse(audio), ping)
        del audio
        await asyncio.sleep(0)
        return held() is not None

    assert not asyncio.run(ask())
