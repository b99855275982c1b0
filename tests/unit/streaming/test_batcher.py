"""Which patches share a round."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from triton_speech.streaming.batcher import Batcher, Round
from triton_speech.streaming.window import Act, CoalescingWindow, Decision


def batcher(max_batch: int = 64, **window: Any) -> Batcher[str]:
    return Batcher(CoalescingWindow(max_batch, **window))


def add(one: Batcher[str], stream: str, patches: int, *, first: bool = False, now: float = 0.0) -> None:
    one.add(stream, f"{stream} of {patches}", patches=patches, is_first=first, now=now)


def taken(round_: Round[str]) -> list[tuple[str, int, int]]:
    return [(row.chunk.stream, row.start, row.stop) for row in round_.rows]


def streams(round_: Round[str]) -> list[str]:
    return [row.chunk.stream for row in round_.rows]


def test_a_round_takes_one_piece_of_each_stream() -> None:
    one = batcher()
    for stream in "abc":
        add(one, stream, 1)
    assert taken(one.take()) == [("a", 0, 1), ("b", 0, 1), ("c", 0, 1)]
    assert len(one) == 0


def test_rows_are_of_equal_length_whatever_their_chunks_are() -> None:
    one = batcher()
    add(one, "short", 1)
    add(one, "long", 4)
    assert taken(one.take()) == [("short", 0, 1), ("long", 0, 1)]
    assert taken(one.take()) == [("long", 1, 3)]
    assert taken(one.take()) == [("long", 3, 4)]


def test_a_piece_is_the_largest_that_every_row_has() -> None:
    for least, piece in ((1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (20, 8)):
        one = batcher()
        add(one, "least", least)
        add(one, "more", 20)
        assert one.take().patches == piece


@pytest.mark.parametrize(("count", "piece"), [(1, 8), (8, 8), (9, 4), (16, 4), (17, 2), (32, 2), (33, 1), (64, 1)])
def test_a_round_holds_no_more_patches_than_a_batch_may(count: int, piece: int) -> None:
    """So a stream that has just begun waits for a bounded time, however long its neighbours' chunks are."""
    one = batcher(max_batch=64)
    for index in range(count):
        add(one, str(index), 8)
    round_ = one.take()
    assert (len(round_.rows), round_.patches) == (count, piece)


def test_first_chunks_come_before_later_ones() -> None:
    one = batcher(max_batch=2)
    add(one, "old", 1)
    add(one, "older still", 1)
    add(one, "new", 1, first=True)
    assert streams(one.take()) == ["new", "old"]
    assert streams(one.take()) == ["older still"]


def test_a_chunk_in_parts_keeps_its_place_in_the_line() -> None:
    one = batcher(max_batch=1)
    add(one, "a", 3)
    add(one, "b", 1)
    assert [streams(one.take())[0] for _ in range(4)] == ["a", "a", "a", "b"]


def test_the_oldest_chunk_comes_first() -> None:
    one = batcher(max_batch=1)
    for stream in "abc":
        add(one, stream, 1)
    add(one, "a", 1)
    assert [streams(one.take())[0] for _ in range(4)] == ["a", "b", "c", "a"]


def test_a_streams_chunks_are_taken_one_after_another() -> None:
    one = batcher()
    add(one, "a", 1)
    add(one, "a", 2)
    first, second = one.take(), one.take()
    assert (taken(first), taken(second)) == ([("a", 0, 1)], [("a", 0, 2)])
    assert [row.chunk.item for row in first.rows + second.rows] == ["a of 1", "a of 2"]


def test_a_row_says_whether_its_chunk_ends_with_it() -> None:
    one = batcher(max_batch=1)
    add(one, "a", 2)
    assert [one.take().rows[0].ends_chunk for _ in range(2)] == [False, True]


def test_a_chunk_without_a_patch_takes_no_room_in_a_batch() -> None:
    """Its turn comes with the round after the one that took the rest of its stream."""
    one = batcher(max_batch=2)
    for stream in "ab":
        add(one, stream, 1)
        add(one, stream, 0)
    add(one, "c", 0)
    first, second = one.take(), one.take()
    assert (streams(first), [row.chunk.stream for row in first.ends]) == (["a", "b"], ["c"])
    assert (streams(second), [row.chunk.stream for row in second.ends], second.patches) == ([], ["a", "b"], 0)


def test_a_dropped_stream_leaves_the_others_where_they_were() -> None:
    one = batcher(max_batch=1)
    for stream in "abc":
        add(one, stream, 2)
    one.take()
    assert one.drop("a") == ["a of 2"]
    assert [streams(one.take())[0] for _ in range(4)] == ["b", "b", "c", "c"]
    assert one.drop("a") == []


def test_a_dropped_stream_may_begin_again() -> None:
    one = batcher()
    add(one, "a", 4)
    one.drop("a")
    add(one, "a", 1, first=True)
    assert taken(one.take()) == [("a", 0, 1)]


def test_the_window_counts_streams_not_chunks() -> None:
    one = batcher(min_batch=2, max_wait_ms=10.0)
    add(one, "a", 1)
    add(one, "a", 1)
    assert one.decide(0.0, live=3, running=0).act is Act.WAIT
    add(one, "b", 1)
    assert one.decide(0.0, live=3, running=0).act is Act.DISPATCH


def test_the_window_counts_from_the_oldest_chunk() -> None:
    one = batcher(min_batch=3, max_wait_ms=10.0)
    add(one, "a", 1, now=1.000)
    add(one, "b", 1, now=1.004)
    assert one.decide(1.004, live=3, running=0) == Decision(Act.WAIT, pytest.approx(0.006))


def test_the_rest_of_a_chunk_does_not_wait_again() -> None:
    one = batcher(min_batch=2, max_wait_ms=10.0)
    add(one, "a", 12, now=0.0)
    assert one.decide(0.010, live=3, running=0).act is Act.DISPATCH
    one.take()
    assert one.decide(0.011, live=3, running=0).act is Act.DISPATCH


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_every_patch_is_taken_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    one = batcher(max_batch=rng.choice([1, 3, 8, 64]))
    given: dict[str, list[int]] = defaultdict(list)
    heard: dict[str, list[tuple[int, int]]] = defaultdict(list)
    while len(one) or sum(map(len, given.values())) < 60:
        if sum(map(len, given.values())) < 60 and (rng.random() < 0.6 or not len(one)):
            stream, patches = f"s{rng.randrange(9)}", rng.choice([0, 1, 1, 2, 3, 4, 7, 16])
            add(one, stream, patches, first=stream not in given)
            given[stream].append(patches)
            continue
        round_ = one.take()
        assert len(round_.rows) * round_.patches <= one.window.max_batch
        assert len(set(streams(round_))) == len(round_.rows)
        for row in (*round_.rows, *round_.ends):
            heard[row.chunk.stream].append((row.start, row.stop))
    for stream, sizes in given.items():
        spans = iter(heard[stream])
        for size in sizes:
            start, stop = next(spans)
            assert start == 0
            while stop < size:
                start, now = next(spans)
                assert start == stop
                stop = now
            assert stop == size
        assert next(spans, None) is None
