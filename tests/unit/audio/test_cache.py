"""The cache of work on audio: by content, bounded, copied, and never done twice at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from triton_speech.audio.cache import Array, AudioCache, content_key


def value(size: int = 4, fill: float = 1.0) -> Array:
    return np.full(size, fill, dtype=np.float32)


def returns(array: Array) -> Callable[[], Awaitable[Array]]:
    async def compute() -> Array:
        return array

    return compute


async def never() -> Array:
    raise AssertionError("computed again")


class Slow:
    """A computation that goes on when it is told to."""

    def __init__(self, result: Array | Exception) -> None:
        self.result = result
        self.started, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> Array:
        self.started.set()
        await self.go_on.wait()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def get(cache: AudioCache, key: bytes, compute: Callable[[], Awaitable[Array]]) -> Array:
    return asyncio.run(cache.get(key, compute))


def begin(*calls: Any) -> list[asyncio.Task[Array]]:
    return [asyncio.ensure_future(call) for call in calls]


async def let_run() -> None:
    """Until all that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_key_depends_on_samples_and_salt_only() -> None:
    samples = np.linspace(-1, 1, 100, dtype=np.float32)
    key = content_key(samples, "left")
    assert key == content_key(samples.copy(), "left")
    assert key == content_key(np.repeat(samples, 2)[::2], "left")
    assert key != content_key(samples, "right")
    assert key != content_key(samples[:-1], "left")
    assert key != content_key(np.append(samples, np.float32(0)), "left")
    louder = samples.copy()
    louder[50] = np.nextafter(louder[50], np.float32(2))
    assert key != content_key(louder, "left")


def test_the_second_time_nothing_is_computed() -> None:
    cache = AudioCache(4, 1000)
    np.testing.assert_array_equal(get(cache, b"a", returns(value())), value())
    np.testing.assert_array_equal(get(cache, b"a", never), value())
    assert (cache.stats.hits, cache.stats.misses, cache.stats.waits) == (1, 1, 0)


def test_callers_get_copies() -> None:
    cache = AudioCache(4, 1000)
    computed = value()
    first = get(cache, b"a", returns(computed))
    first[:] = 7
    computed[:] = 8
    get(cache, b"a", never)[:] = 9
    np.testing.assert_array_equal(get(cache, b"a", never), value())


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = AudioCache(2, 1000)
    get(cache, b"a", returns(value()))
    get(cache, b"b", returns(value()))
    get(cache, b"a", never)
    get(cache, b"c", returns(value()))
    get(cache, b"a", never)
    with pytest.raises(AssertionError, match="computed again"):
        get(cache, b"b", never)
    assert cache.stats.evictions == 1


def test_bytes_are_bounded() -> None:
    cache = AudioCache(100, 64)
    for key in (b"a", b"b", b"c", b"d", b"e"):
        get(cache, key, returns(value(4)))
    assert (cache.stats.entries, cache.stats.bytes, cache.stats.evictions) == (4, 64, 1)
    get(cache, b"big", returns(value(12)))
    assert (cache.stats.entries, cache.stats.bytes, cache.stats.evictions) == (2, 64, 4)


def test_an_entry_larger_than_the_cache_is_returned_but_not_kept() -> None:
    cache = AudioCache(4, 64)
    get(cache, b"a", returns(value()))
    assert len(get(cache, b"big", returns(value(17)))) == 17
    assert cache.stats.entries == 1
    get(cache, b"a", never)


@pytest.mark.parametrize(("entries", "size"), [(0, 1000), (4, 0)])
def test_a_cache_of_nothing_keeps_nothing(entries: int, size: int) -> None:
    cache = AudioCache(entries, size)
    get(cache, b"a", returns(value()))
    get(cache, b"a", returns(value()))
    assert (cache.stats.misses, cache.stats.entries, cache.stats.evictions) == (2, 0, 0)


@pytest.mark.parametrize(("entries", "size"), [(-1, 1), (1, -1)])
def test_negative_bounds_are_refused(entries: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"is -1; at least 0 is needed"):
        AudioCache(entries, size)


def test_an_error_reaches_its_caller_and_is_not_kept() -> None:
    cache = AudioCache(4, 1000)
    for _ in range(2):
        with pytest.raises(AssertionError, match="computed again"):
            get(cache, b"a", never)
    np.testing.assert_array_equal(get(cache, b"a", returns(value())), value())


def test_one_computation_serves_all_who_ask_meanwhile() -> None:
    async def scenario() -> None:
        cache, slow = AudioCache(4, 1000), Slow(value(fill=5))
        tasks = begin(cache.get(b"a", slow), *(cache.get(b"a", never) for _ in range(8)))
        await slow.started.wait()
        # What is another one's takes no part in the wait.
        assert (await cache.get(b"b", returns(value(fill=6))) == 6).all()
        assert not any(task.done() for task in tasks)
        slow.go_on.set()
        results = await asyncio.gather(*tasks)
        assert all((result == 5).all() for result in results)
        assert not any(np.shares_memory(results[0], result) for result in results[1:])
        assert (cache.stats.hits, cache.stats.misses, cache.stats.waits) == (0, 2, 8)

    asyncio.run(scenario())


def test_those_who_waited_on_a_failure_go_on_with_their_own() -> None:
    """Another request's error must not become theirs."""

    async def scenario() -> None:
        cache, slow = AudioCache(4, 1000), Slow(RuntimeError("broken"))
        first, *waiting = begin(cache.get(b"a", slow), *(cache.get(b"a", returns(value(fill=3))) for _ in range(3)))
        await slow.started.wait()
        slow.go_on.set()
        with pytest.raises(RuntimeError, match="broken"):
            await first
        assert all((result == 3).all() for result in await asyncio.gather(*waiting))
        assert cache.stats.misses == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("leaving", [0, 1], ids=["who began it", "who waits for it"])
def test_no_callers_cancel_reaches_the_others(leaving: int) -> None:
    async def scenario() -> None:
        cache, slow = AudioCache(4, 1000), Slow(value(fill=5))
        tasks = begin(*(cache.get(b"a", slow) for _ in range(3)))
        await slow.started.wait()
        await let_run()
        tasks[leaving].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[leaving]
        slow.go_on.set()
        others = [task for task in tasks if task is not tasks[leaving]]
        assert all((result == 5).all() for result in await asyncio.gather(*others))
        assert (cache.stats.misses, cache.stats.waits) == (1, 2)

    asyncio.run(scenario())


def test_what_everybody_left_is_kept_for_the_next() -> None:
    async def scenario() -> None:
        cache, slow = AudioCache(4, 1000), Slow(value(fill=5))
        (only,) = begin(cache.get(b"a", slow))
        await slow.started.wait()
        only.cancel()
        slow.go_on.set()
        await let_run()
        assert (await cache.get(b"a", never) == 5).all()

    asyncio.run(scenario())


def test_many_calls_at_once_keep_the_bounds() -> None:
    async def scenario() -> None:
        cache = AudioCache(8, 8 * 16)

        async def work(seed: int) -> None:
            source = np.random.default_rng(seed)
            for number in source.integers(20, size=300):

                async def compute(number: int = int(number)) -> Array:
                    await asyncio.sleep(0)
                    return value(fill=number)

                assert (await cache.get(bytes([number]), compute) == number).all()

        await asyncio.gather(*(work(seed) for seed in range(8)))
        stats = cache.stats
        assert stats.entries <= 8
        assert stats.bytes == 16 * stats.entries
        assert stats.hits + stats.misses + stats.waits == 2400
        assert stats.waits > 0

    asyncio.run(scenario())
