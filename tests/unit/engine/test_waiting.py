"""Whose turn it is where streams wait for a slot."""

from __future__ import annotations

from dataclasses import replace

from triton_speech.engine.waiting import FAIR_TURN, WaitingLine
from triton_speech.request import CONTINUES, HIGH, NORMAL

from .conftest import request


def line_of(*priorities: int) -> WaitingLine:
    line = WaitingLine()
    for index, priority in enumerate(priorities):
        line.add(replace(request(f"{index}"), priority=priority))
    return line


def taken(line: WaitingLine, count: int) -> list[str]:
    return [line.take().stream for _ in range(count)]


def test_equals_go_in_the_order_of_their_arrival() -> None:
    assert taken(line_of(*[NORMAL] * 6), 6) == list("012345")


def test_high_goes_before_normal_and_what_has_begun_before_both() -> None:
    assert taken(line_of(NORMAL, HIGH, HIGH, CONTINUES), 3) == ["3", "1", "2"]


def test_normal_does_not_starve_while_high_ones_keep_coming() -> None:
    line = line_of(NORMAL)
    served = []
    for index in range(FAIR_TURN):
        line.add(replace(request(f"high {index}"), priority=HIGH))
        served.append(line.take().stream)
    assert served[-1] == "0"


def test_who_leaves_is_returned_and_the_others_keep_their_order() -> None:
    line = line_of(NORMAL, NORMAL, HIGH, NORMAL)
    assert [one.stream for one in line.remove(lambda one: one.stream in "12")] == ["1", "2"]
    assert line.remove(lambda one: False) == []
    assert (len(line), taken(line, 2)) == (2, ["0", "3"])
