"""Which streams of an ensemble are asked after, and when."""

from __future__ import annotations

import pytest

from triton_speech.stage.pulses import Pulses


def test_a_stream_is_due_after_its_silence_and_not_before() -> None:
    pulses = Pulses(0.05, 0.005, 5.0)
    pulses.begin("a", 1.0)
    assert pulses.due(1.04) == []
    assert pulses.wait(1.02) == pytest.approx(0.03)
    assert pulses.due(1.06) == ["a"]
    assert pulses.wait(1.06) == 0


def test_what_is_sent_puts_the_pulse_off() -> None:
    pulses = Pulses(0.05, 0.005, 5.0)
    pulses.begin("a", 1.0)
    pulses.begin("b", 1.01)
    pulses.sent("a", 1.04)
    assert pulses.due(1.07) == ["b"]
    assert pulses.wait(1.02) == pytest.approx(0.04)


def test_many_streams_are_asked_less_often() -> None:
    pulses = Pulses(0.05, 0.005, 5.0)
    for index in range(64):
        pulses.begin(str(index), 1.0)
    assert pulses.interval == pytest.approx(0.32)
    assert pulses.due(1.2) == []
    assert len(pulses.due(1.4)) == 64


def test_a_stream_that_is_over_is_never_due() -> None:
    pulses = Pulses(0.05, 0.005, 5.0)
    pulses.begin("a", 1.0)
    pulses.end("a")
    pulses.sent("a", 1.1)
    assert pulses.due(9.0) == []
    assert pulses.wait(9.0) is None


def test_zero_seconds_ask_nobody() -> None:
    pulses = Pulses(0.0, 0.005, 5.0)
    pulses.begin("a", 1.0)
    assert pulses.due(9.0) == []
    assert pulses.wait(9.0) is None


def test_a_stream_of_which_nothing_comes_back_is_lost() -> None:
    pulses = Pulses(0.05, 0.005, 5.0)
    pulses.begin("a", 0.0)
    pulses.begin("b", 0.0)
    for step in range(1, 121):
        for stream in ("a", "b"):
            pulses.sent(stream, step * 0.05)
        pulses.came_back("b")
    assert pulses.lost(4.9) == []
    assert pulses.lost(5.1) == ["a"]
    pulses.end("a")
    assert pulses.lost(9.0) == []


def test_a_machine_that_stands_still_loses_nobody() -> None:
    pulses = Pulses(0.05, 0.005, 5.0)
    pulses.begin("a", 0.0)
    pulses.sent("a", 0.1)
    pulses.sent("a", 60.0)
    assert pulses.lost(60.1) == []
