"""What is counted between two looks, from however many threads."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from triton_speech.errors import SpeechError, full, invalid, too_late, unknown
from triton_speech.stage import catalogue
from triton_speech.stage.request_record import MOST_OF_AN_ID, RequestRecord
from triton_speech.stage.totals import Definition, Totals, labels_of

EVENTS = Definition("events_total", "counter", "Events", ("kind",), (("good",), ("bad",)))
DEPTH = Definition("depth", "gauge", "Depth")
WAIT = Definition("wait_seconds", "histogram", "Waits", buckets=(0.1, 1.0))


@pytest.fixture
def totals() -> Totals:
    return Totals((EVENTS, DEPTH, WAIT))


def test_each_look_has_only_what_is_new(totals: Totals) -> None:
    first = totals.changes()
    assert (first.counters, first.gauges, first.observations) == ({}, {("depth",): 0}, {})
    totals.count("events_total", "good", by=2)
    totals.count("events_total", "good")
    totals.set("depth", to=4)
    totals.observe("wait_seconds", 0.5)
    second = totals.changes()
    assert second.counters == {("events_total", "good"): 3}
    assert second.gauges == {("depth",): 4}
    assert second.observations == {("wait_seconds",): [0.5]}
    third = totals.changes()
    assert (third.counters, third.gauges, third.observations) == ({}, {}, {})


def test_what_stands_elsewhere_is_read_when_somebody_looks(totals: Totals) -> None:
    queue: list[int] = []
    totals.follow("depth", read=lambda: len(queue))
    totals.follow("events_total", "bad", read=lambda: 10 * len(queue))
    totals.changes()
    queue += [1, 2]
    changes = totals.changes()
    assert changes.gauges == {("depth",): 2}
    assert changes.counters == {("events_total", "bad"): 20}
    queue.pop()
    changes = totals.changes()
    assert changes.gauges == {("depth",): 1}
    assert changes.counters == {}, "a counter never falls"


def test_threads_lose_no_count(totals: Totals) -> None:
    def work(_: int) -> None:
        for _ in range(2000):
            totals.count("events_total", "good")
            totals.observe("wait_seconds", 1.0)

    counted, observed = 0.0, 0
    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(work, number) for number in range(8)]
        while not all(one.done() for one in running):
            changes = totals.changes()
            counted += sum(changes.counters.values())
            observed += sum(map(len, changes.observations.values()))
    changes = totals.changes()
    assert counted + sum(changes.counters.values()) == 16_000
    assert observed + sum(map(len, changes.observations.values())) == 16_000


def test_labels_that_nobody_declared_are_refused(totals: Totals) -> None:
    with pytest.raises(KeyError):
        totals.count("events_total", "request-4711")
    with pytest.raises(KeyError):
        totals.set("events_total", "good", to=1)
    with pytest.raises(KeyError):
        totals.observe("depth", 1.0)
    with pytest.raises(KeyError):
        totals.follow("other", read=lambda: 0)
    assert not totals.changes().counters


def test_labels_have_their_names() -> None:
    assert labels_of(EVENTS, ("events_total", "bad"), {"model": "m"}) == {"model": "m", "kind": "bad"}


ALL = (catalogue.FRONT_DOOR, catalogue.FRONTEND, catalogue.REFERENCE, catalogue.TALKER, catalogue.CODEC)


@pytest.mark.parametrize(
    "definition", sorted({one for stage in ALL for one in stage}, key=lambda one: one.name), ids=lambda one: one.name
)
def test_names_and_labels_are_as_prometheus_wants_them(definition: Definition) -> None:
    assert definition.name.startswith("triton_speech_")
    assert definition.name.endswith("_total") == (definition.kind == "counter")
    assert bool(definition.buckets) == (definition.kind == "histogram")
    assert list(definition.buckets) == sorted(set(definition.buckets))
    assert len(set(definition.series)) == len(definition.series) <= 16
    assert all(len(values) == len(definition.labels) for values in definition.series)


ENDS = {
    ("error", "invalid_argument"): invalid("TEXT", "is empty"),
    ("error", "not_found"): unknown("VOICE", "x", "default"),
    ("error", "full"): full("the server", 8),
    ("error", "stopping"): SpeechError("UNAVAILABLE", "the server is stopping"),
    ("error", "stage_died"): SpeechError("UNAVAILABLE", "the codec stage has died; try again in a moment"),
    ("error", "stage_silent"): SpeechError("UNAVAILABLE", "the server is not ready: no answer of a stage within 30 s"),
    ("error", "deadline"): too_late(2.0),
    ("error", "unavailable"): SpeechError("UNAVAILABLE", "something else"),
    ("error", "internal"): RuntimeError("boom"),
    ("cancelled", "caller"): SpeechError("CANCELLED", "gone"),
}


@pytest.mark.parametrize(("how", "error"), ENDS.items(), ids=lambda value: str(value)[:40])
def test_every_error_has_a_reason_that_is_counted(how: tuple[str, str], error: Exception) -> None:
    assert catalogue.how_it_failed(error) == how
    for stage in ALL:
        totals = Totals(stage)
        name = catalogue.REQUESTS if stage is catalogue.FRONT_DOOR else catalogue.STAGE_REQUESTS
        totals.count(name, *how)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, object]]]:
    """The log's lines, as far as they were written when the test looks."""
    found: list[dict[str, object]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(record.getMessage()))

    logger, handler = logging.getLogger("triton_speech.requests"), Keep()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_a_request_that_was_spoken_is_told_with_its_times(lines: list[dict[str, object]]) -> None:
    clock, totals = Clock(), Totals(catalogue.FRONT_DOOR)
    record = RequestRecord("voxcpm2", "a\nb" + "x" * 500, totals, clock, text_chars=13)
    with record.timing("frontend"):
        clock.now += 0.01
    clock.now += 0.09
    record.chunk(24_000, 48_000)
    clock.now += 0.5
    record.chunk(24_000, 48_000)
    record.finished("stop")
    record.failed(RuntimeError("too late to be told"))
    assert lines == [
        {
            "event": "request",
            "id": ("a\nb" + "x" * 500)[:MOST_OF_AN_ID],
            "pipeline": "voxcpm2",
            "outcome": "ok",
            "reason": "stop",
            "text_chars": 13,
            "chunks": 2,
            "audio_seconds": 1.0,
            "seconds": {"frontend": 0.01, "first_audio": 0.1, "total": 0.6},
        }
    ]
    changes = totals.changes()
    assert changes.counters == {(catalogue.REQUESTS, "ok", "stop"): 1}
    assert changes.observations[(catalogue.FIRST_AUDIO,)] == pytest.approx([0.1])
    assert changes.observations[(catalogue.REAL_TIME_FACTOR,)] == pytest.approx([0.5])


def test_a_refused_request_names_its_field_and_has_no_factor(lines: list[dict[str, object]]) -> None:
    totals = Totals(catalogue.FRONT_DOOR)
    record = RequestRecord("voxcpm2", "r", totals, Clock())
    record.failed(invalid("TEXT", "is empty"))
    assert (lines[0]["outcome"], lines[0]["reason"], lines[0]["field"]) == ("error", "invalid_argument", "TEXT")
    changes = totals.changes()
    assert changes.counters == {(catalogue.REQUESTS, "error", "invalid_argument"): 1}
    assert not changes.observations


def test_a_cancelled_request_has_no_factor(lines: list[dict[str, object]]) -> None:
    totals = Totals(catalogue.FRONT_DOOR)
    record = RequestRecord("voxcpm2", "r", totals, Clock())
    record.chunk(100, 100)
    record.finished("cancelled")
    assert (lines[0]["outcome"], lines[0]["reason"]) == ("cancelled", "caller")
    assert set(totals.changes().observations) == {(catalogue.FIRST_AUDIO,)}
