"""The cache of work on audio: by content, bounded, copied, and never done twice at the same time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from triton_speech.audio.cache import Array, AudioCache, content_key


def value(size: int = 4, fill: float = 1.0) -> Array:
    return np.full(size, fill, dtype=np.float32)


def never() -> Array:
    raise AssertionError("computed again")


def returns(array: Array) -> Callable[[], Array]:
    return lambda: array


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
    np.testing.assert_array_equal(cache.get_or_compute(b"a", value), value())
    np.testing.assert_array_equal(cache.get_or_compute(b"a", never), value())
    assert (cache.stats.hits, cache.stats.misses) == (1, 1)


def test_callers_get_copies() -> None:
    cache = AudioCache(4, 1000)
    computed = value()
    first = cache.get_or_compute(b"a", returns(computed))
    first[:] = 7
    computed[:] = 8
    cache.get_or_compute(b"a", never)[:] = 9
    np.testing.assert_array_equal(cache.get_or_compute(b"a", never), value())


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = AudioCache(2, 1000)
    cache.get_or_compute(b"a", value)
    cache.get_or_compute(b"b", value)
    cache.get_or_compute(b"a", never)
    cache.get_or_compute(b"c", value)
    cache.get_or_compute(b"a", never)
    with pytest.raises(AssertionError, match="computed again"):
        cache.get_or_compute(b"b", never)
    assert cache.stats.evictions == 1


def test_bytes_are_bounded() -> None:
    cache = AudioCache(100, 64)
    for key in (b"a", b"b", b"c", b"d", b"e"):
        cache.get_or_compute(key, returns(value(4)))
    assert (cache.stats.entries, cache.stats.bytes, cache.stats.evictions) == (4, 64, 1)
    cache.get_or_compute(b"big", returns(value(12)))
    assert (cache.stats.entries, cache.stats.bytes, cache.stats.evictions) == (2, 64, 4)


def test_an_entry_larger_than_the_cache_is_returned_but_not_kept() -> None:
    cache = AudioCache(4, 64)
    cache.get_or_compute(b"a", value)
    assert len(cache.get_or_compute(b"big", returns(value(17)))) == 17
    assert cache.stats.entries == 1
    cache.get_or_compute(b"a", never)


@pytest.mark.parametrize(("entries", "size"), [(0, 1000), (4, 0)])
def test_a_cache_of_nothing_keeps_nothing(entries: int, size: int) -> None:
    cache = AudioCache(entries, size)
    cache.get_or_compute(b"a", value)
    cache.get_or_compute(b"a", value)
    assert (cache.stats.misses, cache.stats.entries, cache.stats.evictions) == (2, 0, 0)


@pytest.mark.parametrize(("entries", "size"), [(-1, 1), (1, -1)])
def test_negative_bounds_are_refused(entries: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"is -1; at least 0 is needed"):
        AudioCache(entries, size)


def test_an_error_reaches_its_caller_and_is_not_kept() -> None:
    cache = AudioCache(4, 1000)
    for _ in range(2):
        with pytest.raises(AssertionError, match="computed again"):
            cache.get_or_compute(b"a", never)
    np.testing.assert_array_equal(cache.get_or_compute(b"a", value), value())


def test_one_computation_serves_all_who_ask_meanwhile() -> None:
    cache = AudioCache(4, 1000)
    started, go_on = threading.Event(), threading.Event()

    def slow() -> Array:
        started.set()
        assert go_on.wait(10)
        return value(fill=5)

    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(cache.get_or_compute, b"a", slow)
        assert started.wait(10)
        waiting = [pool.submit(cache.get_or_compute, b"a", never) for _ in range(8)]
        other = cache.get_or_compute(b"b", returns(value(fill=6)))
        go_on.set()
        results = [future.result(10) for future in (first, *waiting)]
    assert all((result == 5).all() for result in results)
    assert (other == 6).all()
    assert not any(np.shares_memory(results[0], result) for result in results[1:])
    assert (cache.stats.hits, cache.stats.misses) == (8, 2)


def test_those_who_waited_on_a_failure_go_on_with_their_own() -> None:
    """Another request's cancel or error must not become theirs."""
    cache = AudioCache(4, 1000)
    started, go_on = threading.Event(), threading.Event()

    def fails() -> Array:
        started.set()
        assert go_on.wait(10)
        raise RuntimeError("cancelled")

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get_or_compute, b"a", fails)
        assert started.wait(10)
        waiting = [pool.submit(cache.get_or_compute, b"a", returns(value(fill=3))) for _ in range(3)]
        go_on.set()
        with pytest.raises(RuntimeError, match="cancelled"):
            first.result(10)
        assert all((future.result(10) == 3).all() for future in waiting)
    assert cache.stats.misses == 2


def test_many_threads_keep_the_bounds() -> None:
    cache = AudioCache(8, 8 * 16)

    def work(seed: int) -> None:
        source = np.random.default_rng(seed)
        for _ in range(300):
            number = int(source.integers(20))
            result = cache.get_or_compute(bytes([number]), returns(value(fill=number)))
            assert (result == number).all()

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, seed) for seed in range(8)]:
            future.result(30)
    stats = cache.stats
    assert stats.entries <= 8
    assert stats.bytes == 16 * stats.entries
    assert stats.hits + stats.misses == 2400
