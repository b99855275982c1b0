"""The asyncio client against a real server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import numpy as np
import pytest

from triton_speech_client import (
    AsyncSpeechClient,
    DeadlineExceeded,
    InvalidRequest,
    ServerError,
    ServerUnavailable,
    Speech,
    SpeechClient,
)

TEXT = "The quick brown fox jumps over the lazy dog."
LONG_TEXT = " ".join([TEXT] * 5)


def test_four_requests_run_at_once(speech_server: Any) -> None:
    async def speak() -> list[Speech]:
        async with AsyncSpeechClient(speech_server.grpc_url) as client:
            await client.wait_ready(30)
            return await asyncio.gather(*(client.synthesize(TEXT, seed=i, max_seconds=1) for i in range(4)))

    speeches = asyncio.run(speak())
    assert len(speeches) == 4
    assert all(speech.duration > 0 and speech.finish_reason for speech in speeches)


def test_both_clients_hear_the_same(speech_server: Any, client: SpeechClient) -> None:
    async def speak() -> list[Any]:
        async with AsyncSpeechClient(speech_server.grpc_url) as client:
            return [chunk async for chunk in client.stream(TEXT, seed=5, max_seconds=1)]

    chunks = asyncio.run(speak())
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    expected = client.synthesize(TEXT, seed=5, max_seconds=1).samples
    assert np.array_equal(np.concatenate([chunk.samples for chunk in chunks]), expected)


def test_one_requests_error_leaves_the_others_alone(speech_server: Any) -> None:  # T38
    async def speak() -> list[Speech | BaseException]:
        async with AsyncSpeechClient(speech_server.grpc_url) as client:
            texts = [TEXT, "", TEXT, " "]
            requests = [client.synthesize(text, max_seconds=1) for text in texts]
            return await asyncio.gather(*requests, return_exceptions=True)

    results = asyncio.run(speak())
    assert [type(result) for result in results] == [Speech, InvalidRequest, Speech, InvalidRequest], results


def test_closing_a_stream_or_cancelling_its_task_leaves_the_server_working(speech_server: Any) -> None:
    async def speak() -> Speech:
        async with AsyncSpeechClient(speech_server.grpc_url) as client:
            async with contextlib.aclosing(client.stream(LONG_TEXT)) as chunks:
                async for _ in chunks:
                    break
            task = asyncio.create_task(client.synthesize(LONG_TEXT))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(DeadlineExceeded):
                await client.synthesize(LONG_TEXT, deadline=0.001)
            return await client.synthesize(TEXT, max_seconds=1)

    assert asyncio.run(speak()).duration > 0


def test_an_unknown_pipeline_lists_the_pipelines_of_the_server(speech_server: Any) -> None:  # T10
    async def speak() -> None:
        async with AsyncSpeechClient(speech_server.grpc_url, "nope") as client:
            await client.synthesize(TEXT)

    with pytest.raises(InvalidRequest, match=r"its pipelines are .*voxcpm2"):
        asyncio.run(speak())


def test_an_absent_server_is_unavailable_and_never_ready(closed_port: int) -> None:
    async def speak() -> None:
        async with AsyncSpeechClient(f"127.0.0.1:{closed_port}") as client:
            assert not await client.is_ready()
            await client.synthesize(TEXT)

    with pytest.raises(ServerUnavailable, match=f"127.0.0.1:{closed_port}"):
        asyncio.run(speak())


def test_a_deadline_that_passes_before_the_request_is_sent_is_a_deadline(speech_server: Any) -> None:
    """gRPC then cancels the call itself, which once looked as if the caller's own task had been cancelled."""

    async def speak() -> None:
        async with AsyncSpeechClient(speech_server.grpc_url) as client:
            for _ in range(50):
                with pytest.raises(DeadlineExceeded):
                    await client.synthesize(TEXT, deadline=0.0005)

    asyncio.run(speak())


@pytest.mark.parametrize("told", [asyncio.CancelledError(), ServerError("internal"), ServerUnavailable("not sent")])
def test_whatever_grpc_says_of_a_passed_deadline_it_is_a_deadline(told: BaseException, closed_port: int) -> None:
    """Which of the three it says is a race within gRPC, so that this stands in for it."""

    async def speak() -> None:
        async with AsyncSpeechClient(f"127.0.0.1:{closed_port}") as client:

            async def fails_late(call: Any, deadline: float | None) -> None:
                await asyncio.sleep(0.01)
                raise told

            client._next_response = fails_late  # type: ignore[method-assign]
            await client.synthesize(TEXT, deadline=0.005)

    with pytest.raises(DeadlineExceeded, match=r"the deadline of 0\.005 s"):
        asyncio.run(speak())
