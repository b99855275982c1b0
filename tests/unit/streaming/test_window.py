"""The coalescing window, in seconds of a clock that the tests hold."""

from __future__ import annotations

import math
from typing import Any

import pytest

from triton_speech.streaming.window import Act, CoalescingWindow, Decision, Load

DISPATCH, RETIRE, ASLEEP = Decision(Act.DISPATCH), Decision(Act.RETIRE), Decision(Act.WAIT, None)


def window(min_batch: int = 4, max_wait_ms: float = 12.0, **others: Any) -> CoalescingWindow:
    return CoalescingWindow(max_batch=64, min_batch=min_batch, max_wait_ms=max_wait_ms, **others)


def load(ready: int, since: float = 0.0, *, live: int = 8, running: int = 0) -> Load:
    return Load(ready, since, live, running)


def waits(decision: Decision) -> float:
    assert decision.act is Act.WAIT
    assert decision.seconds is not None
    return decision.seconds


def test_the_first_ready_chunk_sets_the_deadline_and_none_that_follow_extend_it() -> None:
    one = window()
    assert waits(one.decide(0.000, load(1))) == pytest.approx(0.012)
    assert waits(one.decide(0.003, load(2))) == pytest.approx(0.009)
    assert waits(one.decide(0.011, load(3))) == pytest.approx(0.001)
    assert one.decide(0.012, load(3)) == DISPATCH


def test_a_batch_that_fills_up_goes_before_its_deadline() -> None:
    one = window()
    assert one.decide(0.000, load(2)).act is Act.WAIT
    assert one.decide(0.002, load(3)).act is Act.WAIT
    assert one.decide(0.003, load(4)) == DISPATCH


def test_the_wait_counts_from_when_the_chunk_came_not_from_when_it_was_seen() -> None:
    """It may have come while a batch was being decoded."""
    assert waits(window().decide(0.010, load(1, since=0.002))) == pytest.approx(0.004)
    assert window().decide(0.015, load(1, since=0.002)) == DISPATCH


def test_each_batch_has_a_window_of_its_own() -> None:
    one = window()
    one.decide(0.000, load(1))
    assert one.decide(0.012, load(1)) == DISPATCH
    assert waits(one.decide(0.020, load(1, since=0.020))) == pytest.approx(0.012)


def test_the_window_stays_when_the_chunk_that_opened_it_is_cancelled() -> None:
    one = window()
    one.decide(0.000, load(2, since=0.000))
    assert waits(one.decide(0.008, load(1, since=0.006))) == pytest.approx(0.004)


def test_the_window_closes_when_nothing_is_ready_any_more() -> None:
    one = window()
    one.decide(0.000, load(1))
    assert one.decide(0.004, load(0)) == ASLEEP
    assert waits(one.decide(0.010, load(1, since=0.010))) == pytest.approx(0.012)


@pytest.mark.parametrize("live", [1, 2, 3])
def test_fewer_live_streams_than_wanted_go_at_once(live: int) -> None:
    """There is nobody to wait for."""
    assert window().decide(0.0, load(1, live=live)) == DISPATCH


def test_as_many_live_streams_as_wanted_are_waited_for() -> None:
    assert window().decide(0.0, load(1, live=4)).act is Act.WAIT


def test_streams_that_end_while_one_waits_let_it_go() -> None:
    one = window()
    assert one.decide(0.000, load(1, live=4)).act is Act.WAIT
    assert one.decide(0.001, load(1, live=3)) == DISPATCH


@pytest.mark.parametrize("others", [{"min_batch": 1}, {"max_wait_ms": 0.0}])
def test_without_a_wait_every_batch_goes_at_once(others: dict[str, Any]) -> None:
    assert window(**others).decide(0.0, load(1, running=1)) == DISPATCH


def test_what_runs_is_collected_before_anything_waits() -> None:
    """The deadline stands: a batch that took 5 of 12 ms to collect leaves 7."""
    one = window()
    assert one.decide(0.000, load(1, running=2)) == RETIRE
    assert one.decide(0.002, load(1, running=1)) == RETIRE
    assert waits(one.decide(0.005, load(1))) == pytest.approx(0.007)


def test_a_batch_past_its_deadline_goes_even_while_another_runs() -> None:
    one = window()
    assert one.decide(0.000, load(1, running=1)) == RETIRE
    assert one.decide(0.013, load(1, running=1)) == DISPATCH


def test_with_nothing_ready_what_runs_is_collected_and_then_all_is_still() -> None:
    one = window()
    assert one.decide(0.0, load(0, running=1)) == RETIRE
    assert one.decide(0.1, load(0)) == ASLEEP


class TestIdleWait:
    def test_an_idle_time_ends_after_the_wait_or_with_the_first_chunk(self) -> None:
        assert window(policy="idle_wait").decide(0.0, load(0)) == Decision(Act.WAIT, 0.012)

    def test_the_chunk_that_ends_it_opens_a_fresh_window(self) -> None:
        """24 ms in all, of which the first 12 end with the chunk."""
        one = window(policy="idle_wait")
        one.decide(0.000, load(0))
        assert waits(one.decide(0.012, load(1, since=0.011))) == pytest.approx(0.012)
        assert waits(one.decide(0.020, load(2, since=0.011))) == pytest.approx(0.004)
        assert one.decide(0.024, load(2, since=0.011)) == DISPATCH

    def test_only_that_one(self) -> None:
        one = window(policy="idle_wait")
        one.decide(0.000, load(0))
        one.decide(0.010, load(4, since=0.010))
        assert waits(one.decide(0.030, load(1, since=0.025))) == pytest.approx(0.007)

    def test_it_does_not_begin_while_a_batch_runs(self) -> None:
        assert window(policy="idle_wait").decide(0.0, load(0, running=1)) == RETIRE

    @pytest.mark.parametrize(("wait", "live"), [(12.0, 0), (0.0, 8)])
    def test_without_a_stream_or_a_wait_it_has_no_end(self, wait: float, live: int) -> None:
        one = window(max_wait_ms=wait, policy="idle_wait")
        assert one.decide(0.0, load(0, live=live)) == ASLEEP

    def test_fixed_waits_for_the_first_chunk_without_end(self) -> None:
        one = window(policy="fixed")
        assert one.decide(0.000, load(0)) == ASLEEP
        assert waits(one.decide(0.012, load(1, since=0.011))) == pytest.approx(0.011)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"min_batch": 0}, r"min_batch is 0, must be 1 to max_batch \(128\)"),
        ({"min_batch": 129}, r"min_batch is 129, must be 1 to max_batch \(128\)"),
        ({"max_batch": 256, "min_batch": 257}, r"min_batch is 257, must be 1 to max_batch \(256\)"),
        ({"max_wait_ms": -1.0}, "max_wait_ms is -1.0, must be finite and at least 0"),
        ({"max_wait_ms": math.nan}, "max_wait_ms is nan, must be finite and at least 0"),
        ({"max_wait_ms": math.inf}, "max_wait_ms is inf, must be finite and at least 0"),
        ({"policy": "lazy"}, "wait_policy is 'lazy', must be 'fixed' or 'idle_wait'"),
    ],
    ids=str,
)
def test_what_a_window_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        CoalescingWindow(**{"max_batch": 128, **given})


def test_the_ends_of_the_allowed_are_allowed() -> None:
    CoalescingWindow(max_batch=128, min_batch=128)
    CoalescingWindow(max_batch=1, min_batch=1, max_wait_ms=0.0)
