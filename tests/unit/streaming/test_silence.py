"""Silence at a stream's end: as much as is allowed is sent, however the samples were cut."""

from __future__ import annotations

import numpy as np
import pytest

from triton_speech.streaming.silence import SILENCE, SilentTail

SOUND, QUIET = np.float32(0.5), np.float32(SILENCE / 2)


def samples(pattern: str) -> np.ndarray:
    """One sample a character: ``#`` is sound, ``.`` silence; no two are equal."""
    signs = np.where(np.arange(len(pattern)) % 2, -1, 1)
    levels = np.array([SOUND if sign == "#" else QUIET for sign in pattern], np.float32)
    return (levels * signs * (1 - np.arange(len(pattern)) / 1000)).astype(np.float32)


def sent(most: int, *chunks: str) -> list[int]:
    """How many samples each push returns; what they are is checked on the way."""
    tail = SilentTail(most)
    whole = samples("".join(chunks))
    cuts = np.cumsum([len(chunk) for chunk in chunks])[:-1]
    parts = [tail.push(part) for part in np.split(whole, cuts)]
    joined = np.concatenate(parts)
    assert np.array_equal(joined, whole[: len(joined)])
    return [len(part) for part in parts]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (["##", "##"], [2, 2]),
        (["#.", ".#"], [2, 2]),
        (["#...", "#..."], [3, 4]),
        (["#..", "...", "...", "#"], [3, 0, 0, 7]),
        (["#..", "...", "...", "..."], [3, 0, 0, 0]),
        (["#.", "..", "..", ".."], [2, 1, 0, 0]),
        (["....", "....", "##"], [2, 0, 8]),
        (["....", "...."], [2, 0]),
        (["#...", "", "#"], [3, 0, 2]),
        (["#..#....#....."], [11]),
    ],
    ids=str,
)
def test_silence_up_to_the_limit_is_sent_at_once_and_the_rest_with_the_next_sound(
    chunks: list[str], expected: list[int]
) -> None:
    assert sent(2, *chunks) == expected


def test_a_limit_of_nothing_sends_no_silence_before_its_sound() -> None:
    assert sent(0, "..##..", "..#", "..") == [4, 5, 0]


def test_the_level_is_fifty_decibels_below_full_scale() -> None:
    assert 20 * np.log10(SILENCE) == pytest.approx(-50)
    tail = SilentTail(0)
    assert len(tail.push(np.array([SILENCE * 0.99], np.float32))) == 0
    assert len(tail.push(np.array([-SILENCE * 1.01], np.float32))) == 2


def test_random_streams_lose_nothing_but_their_silent_end() -> None:
    source = np.random.default_rng(1)
    for _ in range(300):
        pattern = "".join(source.choice(list("#......"), source.integers(1, 60)))
        cuts = sorted(source.integers(0, len(pattern), 4))
        most = int(source.integers(0, 8))
        chunks = [pattern[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        assert sum(sent(most, *chunks)) == min(len(pattern), pattern.rfind("#") + 1 + most)
