"""How streams wait, end and fail."""

from __future__ import annotations

import queue
import time
from dataclasses import replace

import pytest
import torch

from triton_speech.engine.api import EngineOptions
from triton_speech.engine.runner import EngineThread
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.errors import SpeechError
from triton_speech.families.voxcpm2.checkpoint import load_talker
from triton_speech.families.voxcpm2.talker import SlotTalker
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.request import CONTINUES

from .conftest import patches, request, run


def finishes(frames):
    return [frame.finish for frame in frames]


def test_a_stream_ends_with_length_at_its_cap(make_engine):
    frames = run(make_engine(), {0: [request("a", frames=5)]})["a"]
    assert finishes(frames) == ["", "", "", "", "length"]


def test_a_stream_ends_with_length_where_the_buffers_end(make_engine, model):
    one = request("a", tokens=model.length - 6, frames=1000)
    frames = run(make_engine(), {0: [one]})["a"]
    assert len(frames) == model.length - one.prompt.length + 1
    assert frames[-1].finish == "length"


def test_a_stop_is_obeyed_after_the_least_number_of_frames(tmp_path):
    model = load_talker(write_tiny_checkpoint(tmp_path, stops_at_once=True))
    options = EngineOptions(max_num_seqs=2)
    engine = TorchEngine(SlotTalker(model, slots_needed(options)), options)
    frames = run(engine, {0: [request("a", frames=50)]})["a"]
    assert finishes(frames) == ["", "", "", "stop"]


def test_a_prompt_that_does_not_fit_is_refused(make_engine, model):
    with pytest.raises(SpeechError, match=f"TEXT: .* at most {model.length - 1} fit") as caught:
        make_engine().add(request("a", tokens=model.length))
    assert caught.value.code == "INVALID_ARG"


def test_more_streams_than_slots_wait_and_then_are_refused(make_engine):
    engine = make_engine(max_num_seqs=2, max_waiting=1)
    for index in range(3):
        engine.add(request(f"s{index}"))
    with pytest.raises(SpeechError, match="is full") as caught:
        engine.add(request("one too many"))
    assert caught.value.code == "UNAVAILABLE"
    assert set(run(engine, {0: []})) == {"s0", "s1", "s2"}


def test_cancel_frees_a_running_stream_at_the_next_step(make_engine):
    engine = make_engine(max_num_seqs=1)
    engine.add(request("a", frames=100))
    engine.add(request("b", frames=3))
    engine.step()
    engine.cancel("a")
    frames = engine.step()
    assert [(frame.stream, frame.finish) for frame in frames] == [("a", "cancelled"), ("b", "")]


def test_cancel_ends_a_waiting_stream(make_engine):
    engine = make_engine(max_num_seqs=1)
    engine.add(request("a", frames=20))
    engine.step()
    engine.add(request("b"))
    engine.cancel("b")
    ended = [(frame.stream, frame.finish) for frame in engine.step() if frame.finish]
    assert ended == [("b", "cancelled")]
    assert set(run(engine, {0: []})) == {"a"}


def test_a_stream_past_its_deadline_is_ended_and_its_slot_is_free(make_engine):
    engine = make_engine(max_num_seqs=1)
    engine.add(replace(request("late", frames=100), deadline=time.monotonic() + 3600, seconds=3600))
    engine.step()
    late = engine._running["late"]
    late.request = replace(late.request, deadline=time.monotonic())
    engine.add(request("next", frames=2))
    ended, *others = engine.step()
    assert (ended.stream, ended.error.code) == ("late", "UNAVAILABLE")
    assert "the deadline of 3600 s has passed" in ended.error.text
    assert [frame.stream for frame in others] == ["next"]


def test_a_waiting_stream_past_its_deadline_leaves_the_queue(make_engine):
    engine = make_engine(max_num_seqs=1)
    engine.add(request("a", frames=20))
    engine.step()
    engine.add(replace(request("late"), deadline=time.monotonic(), seconds=2.0))
    assert [frame.stream for frame in engine.step() if frame.error] == ["late"]
    assert set(run(engine, {0: []})) == {"a"}


def test_the_queue_is_never_full_for_a_speech_that_has_begun(make_engine):
    engine = make_engine(max_num_seqs=1, max_waiting=1)
    for index in range(2):
        engine.add(request(f"s{index}", frames=2))
    with pytest.raises(SpeechError, match="is full"):
        engine.add(replace(request("high"), priority=1))
    engine.add(replace(request("goes on", frames=2), priority=CONTINUES))
    assert list(run(engine, {0: []})) == ["goes on", "s0", "s1"]


def test_cancel_of_an_unknown_stream_does_not_hit_a_later_one(make_engine):
    engine = make_engine()
    engine.cancel("a")
    engine.step()
    assert finishes(run(engine, {0: [request("a", frames=3)]})["a"])[-1] == "length"


def test_a_failing_prompt_leaves_its_neighbours_alone(make_engine):
    bad = request("bad")
    object.__setattr__(bad.prompt, "reference", torch.zeros(3, 5, 5))
    frames = run(make_engine(), {0: [request("good", frames=5), bad]})
    assert frames["bad"][-1].error.code == "INTERNAL"
    assert finishes(frames["good"])[-1] == "length"


def test_a_failed_stream_gives_its_slot_back(make_engine):
    engine = make_engine(max_num_seqs=1)
    for index in range(3):
        bad = request(f"bad{index}")
        object.__setattr__(bad.prompt, "reference", torch.zeros(3, 5, 5))
        run(engine, {0: [bad]})
    assert finishes(run(engine, {0: [request("good", frames=2)]})["good"])[-1] == "length"


def test_a_prompt_that_fails_ends_its_own_stream_alone(make_engine):
    bad = request("bad")
    object.__setattr__(bad.prompt, "reference", torch.zeros(3, 5, 5))
    frames = run(make_engine(), {0: [request("before", frames=2), bad, request("after", frames=2)]})
    assert frames["bad"][-1].error is not None
    assert finishes(frames["before"])[-1] == finishes(frames["after"])[-1] == "length"


def test_a_stream_of_nan_does_not_poison_its_slot(make_engine):
    expected = patches(run(make_engine(max_num_seqs=1), {0: [request("good", frames=10)]})["good"])
    poison = request("poison", tokens=30, reference=20, frames=50)
    poison.prompt.reference.fill_(float("nan"))
    engine = make_engine(max_num_seqs=1)
    assert run(engine, {0: [poison]})["poison"][-1].error.code == "INTERNAL"
    assert torch.equal(patches(run(engine, {0: [request("good", frames=10)]})["good"]), expected)


def test_a_stream_of_nan_leaves_its_neighbours_alone(make_engine):
    poison = request("poison", reference=20, frames=50)
    poison.prompt.reference.fill_(float("nan"))
    frames = run(make_engine(), {0: [request("good", frames=10), poison]})
    assert frames["poison"][-1].error is not None
    assert finishes(frames["good"])[-1] == "length"
    assert patches(frames["good"]).isfinite().all()


@pytest.mark.parametrize(
    ("field", "how"),
    [("CFG_VALUE", {"cfg_value": float("nan")}), ("CFG_VALUE", {"cfg_value": 11.0}), ("INFERENCE_STEPS", {"steps": 1})],
)
def test_sampling_that_would_stop_a_batch_is_refused(field, how):
    with pytest.raises(SpeechError, match=field):
        request("a", **how)


def test_an_engine_that_fails_ends_its_streams_and_serves_on(make_engine):
    frames: queue.Queue = queue.Queue()
    engine = make_engine(max_num_seqs=2)
    working_step = engine.step

    def failing_step():
        engine.step = working_step
        raise RuntimeError("a fault of the engine itself")

    engine.step = failing_step
    thread = EngineThread(engine, frames.put)
    try:
        thread.submit(request("lost"))
        assert frames.get(timeout=30)[0].error.code == "INTERNAL"
        thread.submit(request("served", frames=2))
        last = next(f for batch in iter(lambda: frames.get(timeout=30), None) for f in batch if f.stream == "served")
        assert last.error is None
    finally:
        thread.close()


@pytest.mark.parametrize("name", ["max_num_seqs", "prefill_chunk", "prefill_budget"])
def test_options_name_what_is_wrong(name):
    with pytest.raises(ValueError, match=f"{name} is 0, must be at least 1"):
        EngineOptions(**{name: 0})


def test_the_engine_thread_serves_requests_that_arrive_while_it_runs(make_engine):
    frames: queue.Queue = queue.Queue()
    thread = EngineThread(make_engine(max_num_seqs=2), frames.put)
    try:
        for index in range(5):
            thread.submit(request(f"s{index}", frames=6, seed=index))
        ends: dict[str, str] = {}
        while len(ends) < 5:
            ends.update({f.stream: f.finish for f in frames.get(timeout=30) if f.is_last})
        assert set(ends.values()) == {"length"}
        thread.submit(request("later", frames=10_000, tokens=5))
        thread.cancel("later")
        last = next(f for f in iter(lambda: frames.get(timeout=30)[-1], None) if f.is_last)
        assert last.finish == "cancelled"
    finally:
        thread.close()


def test_what_is_called_between_steps_is_done_while_streams_run_and_while_none_does(make_engine):
    frames: queue.SimpleQueue = queue.SimpleQueue()
    thread = EngineThread(make_engine(max_num_seqs=2), frames.put)
    thread.submit(request("a", frames=200))
    frames.get(timeout=30)
    done: queue.SimpleQueue = queue.SimpleQueue()
    thread.call(lambda: done.put("busy"))
    assert done.get(timeout=30) == "busy"
    thread.cancel("a")
    while frames.get(timeout=30)[-1].finish != "cancelled":
        pass
    thread.call(lambda: done.put("idle"))
    assert done.get(timeout=30) == "idle"
    thread.close()
