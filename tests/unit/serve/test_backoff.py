"""When something is tried again."""

from __future__ import annotations

from triton_speech.serve.backoff import Backoff


def test_attempts_wait_twice_as_long_each_time_and_end() -> None:
    backoff = Backoff(4)
    assert [backoff.next(float(now)) for now in range(5)] == [0, 1, 2, 4, None]


def test_a_steady_minute_ends_the_row() -> None:
    backoff = Backoff(1)
    assert backoff.next(0.0) == 0
    # A load of many minutes is no steady time.
    backoff.succeeded(600.0)
    assert backoff.next(610.0) is None
    assert backoff.next(661.0) == 0


def test_no_wait_is_longer_than_half_a_minute() -> None:
    backoff = Backoff(100)
    assert max(backoff.next(0.0) or 0 for _ in range(100)) == 30


def test_a_stage_that_dies_now_and_then_is_healed_at_once_each_time() -> None:
    backoff = Backoff(100)
    for death in range(0, 600, 30):
        assert backoff.next(float(death)) == 0
        backoff.succeeded(death + 3.0)


def test_attempts_that_fail_wait_longer_however_long_each_takes() -> None:
    backoff = Backoff(4)
    assert [backoff.next(30.0 * number) for number in range(4)] == [0, 1, 2, 4]
