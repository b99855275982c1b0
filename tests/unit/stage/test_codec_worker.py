"""The codec's thread: who is decoded with whom, and who hears of whose faults."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from triton_speech.errors import SpeechError, too_late
from triton_speech.stage.codec_worker import Chunk, CodecWorker, Release
from triton_speech.stage.failure import finish_of
from triton_speech.streaming.slots import SlotTable
from triton_speech.streaming.window import CoalescingWindow

SECONDS = 10.0


class Done:
    def __init__(self, audio: torch.Tensor | Exception) -> None:
        self.audio = audio

    def result(self) -> torch.Tensor:
        if isinstance(self.audio, Exception):
            raise self.audio
        return self.audio


class SumCodec:
    """Each sample is the sum of all patches of its stream so far: a state that was lost or crossed is heard.

    A patch of 1000 or more makes its batch fail, one of -1000 or less makes its own samples NaN.
    """

    patch_shape = (1, 1)
    sample_rate = 2
    samples_per_patch = 2

    def __init__(self, slots: int, *, fails_late: bool = False) -> None:
        self.state = torch.zeros(slots)
        self.batches: list[tuple[int, int]] = []
        self.fails_late = fails_late
        self.entered, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def reset(self, slot: int) -> None:
        self.state[slot] = 0

    def launch(self, patches: torch.Tensor, slots: Sequence[int]) -> Done:
        self.entered.set()
        assert self.gate.wait(SECONDS)
        assert len(set(slots)) == len(slots) == len(patches)
        self.batches.append((patches.shape[0], patches.shape[1]))
        if patches.max() >= 1000:
            error = RuntimeError("out of memory in /opt/library.so")
            if not self.fails_late:
                raise error
            return Done(error)
        sums = patches.flatten(1).cumsum(1) + self.state[list(slots)].unsqueeze(1)
        self.state[list(slots)] = sums[:, -1]
        sums[patches.flatten(1) <= -1000] = torch.nan
        return Done(sums.repeat_interleave(2, dim=1))


class Streams:
    """Feeds a worker, and waits for what it answers."""

    def __init__(
        self, codec: SumCodec, *, capacity: int = 64, in_flight: int = 1, silence: int | None = None, **window: Any
    ) -> None:
        self.codec = codec
        self.slots = SlotTable(capacity, idle_seconds=60, first=1)
        limits = CoalescingWindow(window.pop("max_batch", 64), **window)
        self.worker = CodecWorker(codec, self.slots, limits, batches_in_flight=in_flight, max_silence=silence)
        self.next: dict[str, int] = {}

    def send(self, stream: str, *values: float, finish: str = "", skipped: int = 0, index: int | None = None) -> Any:
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        due = self.next.get(stream, 0)
        self.next[stream] = due + 1
        patches = torch.tensor(values, dtype=torch.float32).reshape(-1, 1, 1)
        at = due if index is None else index
        self.worker.submit(Chunk(stream, at, patches, skipped, finish, answer.put))
        return answer

    def release(self, stream: str) -> None:
        done = threading.Event()
        self.worker.submit(Release(stream, done.set))
        assert done.wait(SECONDS)
        self.next.pop(stream, None)

    def hold(self) -> Any:
        """Keeps the codec busy with a stream of its own until ``codec.gate`` is set."""
        self.codec.gate.clear()
        self.codec.entered.clear()
        answer = self.send("held", 1)
        assert self.codec.entered.wait(SECONDS)
        return answer


def heard(answer: Any) -> list[float]:
    result = answer.get(timeout=SECONDS)
    assert answer.empty()
    if isinstance(result, SpeechError):
        raise result
    return list(result[::2])


def refused(answer: Any) -> SpeechError:
    result = answer.get(timeout=SECONDS)
    assert isinstance(result, SpeechError)
    assert answer.empty()
    return result


@pytest.fixture(params=[1, 2], ids=["one batch in flight", "two"])
def streams(request: pytest.FixtureRequest) -> Iterator[Streams]:
    made = Streams(SumCodec(65), in_flight=request.param)
    yield made
    made.codec.gate.set()
    made.worker.close()


def test_a_streams_chunks_are_decoded_in_order_with_their_past(streams: Streams) -> None:
    answers = [streams.send("a", 1), streams.send("a", 2, 3), streams.send("a", 4, finish="stop")]
    assert [heard(answer) for answer in answers] == [[1], [3, 6], [10]]


def test_what_gathers_while_a_batch_runs_is_decoded_together(streams: Streams) -> None:
    held = streams.hold()
    answers = [streams.send(f"s{index}", index, index) for index in range(20)]
    streams.codec.gate.set()
    assert heard(held) == [1]
    assert [heard(answer) for answer in answers] == [[index, 2 * index] for index in range(20)]
    assert streams.codec.batches == [(1, 1), (20, 2)]


def test_priming_patches_are_decoded_and_not_heard(streams: Streams) -> None:
    assert heard(streams.send("a", 1, 2, 3, 4, skipped=3)) == [10]
    assert heard(streams.send("b", 1, 2, skipped=2)) == []


def test_an_end_without_a_patch_comes_after_what_it_ends(streams: Streams) -> None:
    last, end = streams.send("a", 1), streams.send("a", finish="stop")
    assert (heard(last), heard(end)) == ([1], [])
    assert refused(streams.send("a", 1)).text.startswith("STREAM_ID: is not known")


def test_the_last_chunk_frees_the_slot_for_a_stream_that_begins_at_zero() -> None:
    streams = Streams(SumCodec(2), capacity=1)
    for stream in "abc":
        assert heard(streams.send(stream, 5)) == [5]
        assert refused(streams.send("one too many", 1)).code == "UNAVAILABLE"
        streams.next.clear()
        streams.next[stream] = 1
        assert heard(streams.send(stream, 1, finish="stop")) == [6]
    streams.worker.close()


def test_silence_at_the_end_is_cut_and_silence_within_comes_late_but_whole() -> None:
    streams = Streams(SumCodec(65), silence=3)
    chunks = [[1, -1, 0], [0], [2], [-2, 0], [0, 0]]
    answers = [streams.send("a", *chunk) for chunk in chunks]
    answers.append(streams.send("a", 0, finish="stop"))
    sent = [answer.get(timeout=SECONDS).tolist() for answer in answers]
    assert sent == [[1, 1, 0, 0, 0], [], [0, 0, 0, 2, 2], [0, 0, 0], [], []]
    assert streams.send("b", 0, 0, finish="stop").get(timeout=SECONDS).tolist() == [0, 0, 0]
    streams.worker.close()


def test_a_released_stream_is_never_heard_again(streams: Streams) -> None:
    """T4: what is queued of it is answered as cancelled, and its slot begins anew."""
    held = streams.hold()
    gone = [streams.send("gone", 1, 2, 3), streams.send("gone", 4)]
    stays = streams.send("stays", 1)
    done = threading.Event()
    streams.worker.submit(Release("gone", done.set))
    streams.codec.gate.set()
    assert done.wait(SECONDS)
    assert [refused(answer).code for answer in gone] == ["CANCELLED"] * 2
    assert (heard(held), heard(stays)) == ([1], [1])
    streams.next.pop("gone")
    assert heard(streams.send("gone", 7)) == [7]


def test_a_stream_released_while_it_is_decoded_gets_no_audio() -> None:
    streams = Streams(SumCodec(65), in_flight=2)
    streams.codec.gate.clear()
    running = streams.send("a", 1)
    assert streams.codec.entered.wait(SECONDS)
    streams.worker.submit(Release("a", lambda: None))
    again = streams.send("a", 5, index=0)
    streams.codec.gate.set()
    # The chunk that was running may have been answered already; it is answered once in any case.
    result = running.get(timeout=SECONDS)
    assert isinstance(result, SpeechError) or list(result) == [1, 1]
    assert heard(again) == [5]
    streams.worker.close()


def test_a_cancelled_stream_does_not_wait_for_its_own_chunks(streams: Streams) -> None:
    """A long chunk that was taken in already kept the slot until all of it was decoded."""
    held = streams.hold()
    waits = streams.send("a", *range(1, 65))
    end = streams.send("a", finish="cancelled")
    again = streams.send("b", 5, finish="stop")
    streams.codec.gate.set()

    assert refused(waits).code == "CANCELLED"
    assert heard(end) == []
    assert heard(again) == [5]
    assert heard(held) == [1]
    assert streams.slots.streams() == ["held"]
    assert sum(streams_ * patches for streams_, patches in streams.codec.batches) == 2


def test_a_stream_that_failed_before_the_codec_frees_its_slot_and_is_answered_why(streams: Streams) -> None:
    """In an ensemble nobody else releases it: its slot was held for as long as a stream may be silent."""
    held = streams.hold()
    waits = streams.send("a", 1)
    late = too_late(1)
    end = streams.send("a", finish=finish_of(late))
    streams.codec.gate.set()
    for answer in (waits, end):
        error = refused(answer)
        assert (error.code, error.text) == ("UNAVAILABLE", late.text)
    assert heard(held) == [1]
    assert streams.slots.streams() == ["held"]


def test_a_stream_cancelled_before_its_first_chunk_needs_no_slot() -> None:
    streams = Streams(SumCodec(2), capacity=1)
    streams.send("a", 1)
    assert heard(streams.send("b", finish="cancelled")) == []
    assert heard(streams.send("a", 2, finish="stop")) == [3]


def test_a_chunk_out_of_order_ends_its_stream_and_no_other(streams: Streams) -> None:
    assert heard(streams.send("a", 1)) == [1]
    assert heard(streams.send("b", 1)) == [1]
    assert refused(streams.send("a", 1, index=5)).text == "CHUNK_INDEX: is 5, chunk 1 was due"
    assert heard(streams.send("b", 1)) == [2]
    assert refused(streams.send("a", 1, index=1)).text.startswith("STREAM_ID: is not known")


def test_nan_latents_end_their_stream_in_its_turn(streams: Streams) -> None:
    held = streams.hold()
    good = [streams.send("good", 1), streams.send("good", 2)]
    bad = [streams.send("bad", 1), streams.send("bad", 1, float("nan")), streams.send("bad", 1)]
    streams.codec.gate.set()
    assert [heard(answer) for answer in (held, *good)] == [[1], [1], [3]]
    assert heard(bad[0]) == [1]
    assert refused(bad[1]).text == "the talker made NaN or infinite latents; the stream was ended"
    refused(bad[2])
    assert "NaN" in refused(streams.send("new", float("inf"))).text
    assert not streams.codec.state.isnan().any()


def test_nan_audio_ends_its_stream_and_not_the_batch(streams: Streams) -> None:
    held = streams.hold()
    answers = [streams.send(stream, value) for stream, value in (("a", 1), ("bad", -1000), ("b", 2))]
    streams.codec.gate.set()
    assert heard(held) == [1]
    assert (heard(answers[0]), heard(answers[2])) == ([1], [2])
    assert refused(answers[1]).text == "the codec made NaN or infinite samples; the stream was ended"
    assert streams.slots.find("bad") is None


@pytest.mark.parametrize("late", [False, True], ids=["when it is launched", "when it is collected"])
def test_a_failing_batch_is_told_to_its_streams_and_to_no_other(late: bool) -> None:
    """S8: no path, no library, and nobody waits for ever."""
    streams = Streams(SumCodec(65, fails_late=late))
    assert heard(streams.send("other", 1)) == [1]
    held = streams.hold()
    failing = [streams.send("a", 1000, 1), streams.send("b", 1), streams.send("a", 1)]
    streams.codec.gate.set()
    assert heard(held) == [1]
    for answer in failing:
        assert refused(answer).text == "the codec failed on this stream; the server's log has it"
    assert heard(streams.send("other", 2)) == [3]
    assert len(streams.slots) == 2
    streams.worker.close()


def test_a_stream_that_cannot_begin_is_told_so() -> None:
    streams = Streams(SumCodec(1))  # no state for slot 1
    assert refused(streams.send("a", 1)).code == "INTERNAL"
    assert len(streams.slots) == 0
    streams.worker.close()


def test_closing_answers_everything_that_waits() -> None:
    streams = Streams(SumCodec(65))
    held = streams.hold()
    closer = threading.Thread(target=streams.worker.close)
    closer.start()
    late = streams.send("a", 1)
    streams.codec.gate.set()
    closer.join(SECONDS)
    assert heard(held) == [1]
    assert refused(late).code == "UNAVAILABLE"


def test_a_small_batch_waits_for_company() -> None:
    streams = Streams(SumCodec(65), min_batch=3, max_wait_ms=60_000.0)
    begun = [streams.hold(), *(streams.send(stream, 1) for stream in "abc")]
    streams.codec.gate.set()
    assert [heard(answer) for answer in begun] == [[1]] * 4
    waiting = [streams.send(stream, 1) for stream in "ab"]
    with pytest.raises(queue.Empty):
        waiting[0].get(timeout=0.05)
    assert heard(streams.send("c", 1)) == [2]
    assert [heard(answer) for answer in waiting] == [[2]] * 2
    assert streams.codec.batches[-1] == (3, 1)
    streams.worker.close()


@pytest.mark.parametrize("seed", range(10))
def test_whatever_comes_each_stream_hears_its_own_sums(seed: int) -> None:
    rng = random.Random(seed)
    streams = Streams(SumCodec(65), in_flight=rng.choice([1, 2]), max_batch=rng.choice([1, 3, 8, 64]))
    values = {f"s{i}": [rng.randint(1, 9) for _ in range(rng.randint(1, 30))] for i in range(64)}
    left = {stream: list(all_) for stream, all_ in values.items()}
    answers: dict[str, list[Any]] = {stream: [] for stream in values}
    while left:
        stream = rng.choice(list(left))
        count = min(rng.randint(1, 5), len(left[stream]))
        chunk, left[stream] = left[stream][:count], left[stream][count:]
        answers[stream].append(streams.send(stream, *chunk, finish="" if left[stream] else "stop"))
        if not left[stream]:
            del left[stream]
    for stream, given in values.items():
        sums = [sample for answer in answers[stream] for sample in heard(answer)]
        assert sums == list(np.cumsum(given))
    assert len(streams.slots) == 0
    streams.worker.close()
