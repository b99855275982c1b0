"""Leasing the codec's slots."""

from __future__ import annotations

import pytest

from triton_speech.errors import SpeechError
from triton_speech.streaming.slots import SlotTable


def test_streams_get_slots_of_their_own_above_the_owners_scratch() -> None:
    table = SlotTable(3, idle_seconds=10, first=1)
    assert sorted(table.lease(stream, now=0).slot for stream in "abc") == [1, 2, 3]
    assert len(table) == 3


def test_a_lease_is_found_again_with_its_state() -> None:
    table = SlotTable(2, idle_seconds=10)
    lease = table.lease("a", now=5)
    lease.next_chunk = 3
    assert table.find("a") is lease
    assert (lease.next_chunk, lease.last_used) == (3, 5)
    assert table.find("b") is None


def test_a_released_slot_serves_the_next_stream_from_its_start() -> None:
    table = SlotTable(1, idle_seconds=10)
    first = table.lease("a", now=0)
    first.next_chunk = 7
    table.release("a")
    second = table.lease("b", now=1)
    assert (second.slot, second.next_chunk) == (first.slot, 0)
    assert table.find("a") is None


def test_an_end_that_is_told_twice_frees_one_slot() -> None:
    table = SlotTable(1, idle_seconds=10)
    table.lease("a", now=0)
    table.release("a")
    table.release("a")
    table.release("never seen")
    table.lease("b", now=0)
    with pytest.raises(SpeechError):
        table.lease("c", now=0)


def test_living_streams_are_never_turned_out() -> None:
    """A full table says so; no stream loses its state to a newcomer."""
    table = SlotTable(2, idle_seconds=10)
    table.lease("a", now=0)
    table.lease("b", now=5)
    with pytest.raises(SpeechError, match=r"^the codec is full \(2\)") as error:
        table.lease("c", now=10)
    assert error.value.code == "UNAVAILABLE"
    assert table.find("a")
    assert table.find("b")


def test_a_silent_stream_loses_its_slot_only_when_another_needs_it() -> None:
    table = SlotTable(2, idle_seconds=10)
    silent = table.lease("a", now=0)
    table.lease("b", now=0).last_used = 95
    assert table.find("a") is silent
    assert table.lease("c", now=100).slot == silent.slot
    assert table.find("a") is None
    assert table.find("b") is not None


def test_a_stream_whose_chunk_waits_is_not_silent() -> None:
    """It is the codec that keeps it waiting."""
    table = SlotTable(1, idle_seconds=10)
    lease = table.lease("a", now=0)
    lease.waiting = 1
    with pytest.raises(SpeechError, match="is full"):
        table.lease("b", now=100)
    lease.waiting = 0
    assert table.lease("b", now=100).slot == lease.slot
