"""What the talker is given of each segment, and when a stream of several is over."""

from __future__ import annotations

from typing import Any

import numpy as np

from triton_speech.long_text import LongText, Segment, segment_seed
from triton_speech.request import CONTINUES
from triton_speech.streaming.long_speech import LongSpeech

MORE = [Segment([4, 5], 20), Segment([6], 30)]


def first() -> dict[str, Any]:
    return {
        "STREAM_ID": np.array([b"one"], np.object_),
        "TOKENS": np.array([1, 2, 3], np.int32),
        "SEED": np.array([2**64 - 1], np.uint64),
        "MAX_FRAMES": np.array([10], np.int32),
        "PRIORITY": np.array([1], np.int32),
        "CFG_VALUE": np.array([2.0], np.float32),
        "REFERENCE_LATENTS": np.zeros((0, 2, 8), np.float32),
    }


def frames(count: int, value: float = 0.0) -> Any:
    return np.full((count, 2, 8), value, np.float32)


def speech(more: list[Segment] = MORE, follow: int = 0, most: int | None = None) -> LongSpeech:
    return LongSpeech(first(), LongText(more, follow, 12.5, most))


def test_a_text_of_one_segment_is_given_as_it_is_and_then_over() -> None:
    one = speech([])
    given = one.next_inputs()
    assert all(np.array_equal(given[name], value) for name, value in first().items())
    assert not one.is_long
    assert not one.goes_on("stop")


def test_later_segments_have_tokens_seed_cap_and_stream_of_their_own() -> None:
    one = speech()
    one.next_inputs()
    ids = set()
    for index, segment in enumerate(MORE, start=1):
        one.take(frames(5), "stop")
        assert one.goes_on("stop")
        given = one.next_inputs()
        assert given["TOKENS"].tolist() == segment.tokens
        assert given["SEED"].item() == segment_seed(2**64 - 1, index)
        assert given["MAX_FRAMES"].item() == segment.max_frames
        assert given["PRIORITY"].item() == CONTINUES
        assert given["CFG_VALUE"].item() == 2.0
        assert {name: value.dtype for name, value in given.items()} == {n: v.dtype for n, v in first().items()}
        ids.add(given["STREAM_ID"].item())
    assert len(ids | {b"one"}) == 3
    assert not one.goes_on("stop")
    assert one.seconds == 10 / 12.5


def test_a_limit_of_the_whole_stream_caps_the_segment_that_reaches_it_and_ends_the_stream() -> None:
    one = speech(most=12)
    one.next_inputs()
    one.take(frames(7), "stop")
    assert one.goes_on("stop")
    assert one.next_inputs()["MAX_FRAMES"].item() == 5
    one.take(frames(5), "length")
    assert not one.goes_on("length")
    assert one.finish_reason("length") == "length"


def test_a_segment_that_was_cut_is_told_at_the_end() -> None:
    one = speech()
    one.next_inputs()
    one.take(frames(3), "length")
    assert one.goes_on("length")
    assert one.finish_reason("stop") == "length"
    assert one.finish_reason("cancelled") == "cancelled"


def test_a_cancelled_segment_is_the_last_one() -> None:
    one = speech()
    one.next_inputs()
    assert not one.goes_on("cancelled")
    assert not one.goes_on("")


def test_the_first_frames_are_the_later_ones_reference_and_no_more_than_were_asked_for() -> None:
    one = speech(follow=5)
    one.next_inputs()
    one.take(frames(2, 1.0), "")
    one.take(frames(1, 2.0), "stop")
    assert one.next_inputs()["REFERENCE_LATENTS"][:, 0, 0].tolist() == [1, 1, 2]
    # A first segment that is very short is no voice yet: the next one adds to it.
    one.take(frames(4, 3.0), "stop")
    assert one.next_inputs()["REFERENCE_LATENTS"][:, 0, 0].tolist() == [1, 1, 2, 3, 3]


def test_a_given_voice_stays_as_it_is() -> None:
    one = speech(follow=0)
    one.next_inputs()
    one.take(frames(2, 1.0), "stop")
    assert len(one.next_inputs()["REFERENCE_LATENTS"]) == 0
