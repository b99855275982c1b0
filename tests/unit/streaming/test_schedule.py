"""Cutting a stream of frames into chunks."""

from __future__ import annotations

import pytest

from triton_speech.streaming.schedule import Chunker, ChunkSchedule


def cut(schedule: tuple[int, ...], frames: int) -> list[list[int]]:
    """Chunks of a stream whose frames come one by one; the last one comes with the end."""
    chunker: Chunker[int] = Chunker(ChunkSchedule(schedule))
    pushed = [chunker.push([frame], last=frame == frames - 1) for frame in range(frames)]
    return [chunk for chunk in pushed if chunk]


@pytest.mark.parametrize(
    ("schedule", "frames", "sizes"),
    [
        ((1, 2, 4), 12, [1, 2, 4, 4, 1]),
        ((1, 2, 4), 11, [1, 2, 4, 4]),
        ((1,), 3, [1, 1, 1]),
        ((64,), 5, [5]),
        ((3, 1), 7, [3, 1, 1, 1, 1]),
        ((2,), 1, [1]),
    ],
)
def test_chunks_grow_by_schedule_and_the_tail_is_flushed(
    schedule: tuple[int, ...], frames: int, sizes: list[int]
) -> None:
    chunks = cut(schedule, frames)
    assert [len(chunk) for chunk in chunks] == sizes
    assert [frame for chunk in chunks for frame in chunk] == list(range(frames))


def test_the_index_counts_chunks_that_were_handed_out() -> None:
    chunker: Chunker[str] = Chunker(ChunkSchedule((1, 2)))
    indices = []
    for frame in "abcde":
        index = chunker.chunks
        if chunker.push([frame], last=frame == "e"):
            indices.append(index)
    assert indices == [0, 1, 2]


def test_an_end_without_a_frame_hands_out_what_is_held() -> None:
    chunker: Chunker[str] = Chunker(ChunkSchedule((4,)))
    assert chunker.push(["a"], last=False) == []
    assert chunker.push([], last=True) == ["a"]
    assert Chunker[str](ChunkSchedule()).push([], last=True) == []


def test_a_chunk_belongs_to_its_receiver() -> None:
    chunker: Chunker[str] = Chunker(ChunkSchedule((1,)))
    first = chunker.push(["a"], last=False)
    chunker.push(["b"], last=True)
    assert first == ["a"]


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ((), "has 0 entries, must have 1 to 32"),
        ((1,) * 33, "has 33 entries, must have 1 to 32"),
        ((1, 0), "holds 0, each entry must be 1 to 64 frames"),
        ((65,), "holds 65, each entry must be 1 to 64 frames"),
        ((-1,), "holds -1, each entry must be 1 to 64 frames"),
    ],
    ids=str,
)
def test_a_schedule_outside_its_limits_is_refused(frames: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ChunkSchedule(frames)


def test_a_schedule_is_read_from_a_parameter() -> None:
    assert ChunkSchedule.parse("1,2, 4").frames == (1, 2, 4)
    for text in ("", "1,,2", "a", "1;2", "0"):
        with pytest.raises(ValueError, match=f"^chunk schedule '{text}': "):
            ChunkSchedule.parse(text)
