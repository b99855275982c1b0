"""What the metrics port and the log say after requests whose ends are known."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triton_speech.probe import PROBE_ID
from triton_speech.stage import catalogue

ROOT = Path(__file__).resolve().parents[2]
TEXT = {"TEXT": "Hello there.", "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.5], np.float32)}
LONG = {**TEXT, "TEXT": "Hello there. " * 20, "MAX_SECONDS": np.array([60.0], np.float32)}
SETTLE_SECONDS = 20.0
HELD_SECONDS = 0.5

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape:
    """The metrics port at one moment."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        self.series: Series = {}
        for line in lines:
            if found := re.fullmatch(r"(triton_speech_\w+)\{(.*)\} (\S+)", line):
                labels = frozenset(re.findall(r'(\w+)="([^"]*)"', found[2]))
                self.series[found[1], labels] = float(found[3])
        self.kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE triton_speech_"))

    def sum(self, name: str, **labels: str) -> float:
        wanted = set(labels.items())
        return sum(value for (own, its), value in self.series.items() if own == name and wanted <= its)


class Watch:
    """What has been counted since it began."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._log = len(server.log_text())
        time.sleep(0.5)
        self._before = Scrape(server.metrics_url)

    def grown(self, name: str, **labels: str) -> float:
        return round(self.now().sum(name, **labels) - self._before.sum(name, **labels), 6)

    def now(self) -> Scrape:
        return Scrape(self._server.metrics_url)

    def settle(self, name: str, count: float, **labels: str) -> None:
        """Waits until so much has been counted; what is counted is told a few times a second."""
        until = time.monotonic() + SETTLE_SECONDS
        while self.grown(name, **labels) < count and time.monotonic() < until:
            time.sleep(0.05)
        # What is too much would come as late as what is missing.
        time.sleep(0.5)

    def ends(self, name: str, model: str) -> dict[tuple[str, str], float]:
        """How many ended how."""
        found: Counter[tuple[str, str]] = Counter()
        for scrape, sign in ((self.now(), 1), (self._before, -1)):
            for (own, labels), value in scrape.series.items():
                if own == name and ("model", model) in labels:
                    known = dict(labels)
                    found[known["outcome"], known["reason"]] += sign * int(value)
        return {how: number for how, number in found.items() if number}

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The log's lines of requests or streams."""
        text = self._server.log_text()[self._log :]
        every = [json.loads(line) for line in text.splitlines() if line.startswith('{"event"')]
        return [line for line in every if line["event"] == event]


@pytest.fixture(scope="module")
def small_server(serving: Callable[..., AbstractContextManager[Any]]) -> Iterator[Any]:
    """A server that is soon full."""
    talker = {"max_num_seqs": 1, "max_waiting": 0, "threads": 1}
    with serving({"voxcpm2": {"max_streams": 3}, "voxcpm2_talker": talker}) as server:
        yield server


@pytest.fixture
def small(small_server: Any, calling: Any) -> Iterator[Any]:
    with calling(small_server.grpc_url) as caller:
        yield caller


def leave_after_first_audio(caller: Any, pipeline: str, **how: Any) -> None:
    call = caller.open(pipeline, LONG, **how)
    next(message for message in call if message.infer_response.outputs)
    call.cancel()


def test_requests_are_counted_by_how_they_ended(speech_server: Any, caller: Any) -> None:
    watch = Watch(speech_server)
    for _ in range(3):
        assert not caller.ask("voxcpm2", TEXT).errors
    assert caller.ask("voxcpm2", {**TEXT, "TEXT": ""}).errors
    assert caller.ask("voxcpm2", {**TEXT, "CFG_VALUE": np.array([99.0], np.float32)}).errors
    assert caller.ask("voxcpm2", {**TEXT, "VOICE": "nobody"}).errors
    assert caller.ask("voxcpm2", {**TEXT, "REFERENCE_AUDIO": b"no audio"}).errors
    leave_after_first_audio(caller, "voxcpm2")
    watch.settle(catalogue.REQUESTS, 8)
    assert watch.ends(catalogue.REQUESTS, "voxcpm2") == {
        ("ok", "length"): 3,
        ("error", "invalid_argument"): 3,
        ("error", "not_found"): 1,
        ("cancelled", "caller"): 1,
    }
    # The request with bad audio passed the frontend, which knows nothing of audio.
    assert watch.ends(catalogue.STAGE_REQUESTS, "voxcpm2_frontend") == {
        ("ok", "answered"): 5,
        ("error", "invalid_argument"): 2,
        ("error", "not_found"): 1,
    }
    assert watch.ends(catalogue.STAGE_REQUESTS, "voxcpm2_reference") == {("error", "invalid_argument"): 1}
    assert watch.ends(catalogue.STAGE_REQUESTS, "voxcpm2_talker") == {("ok", "length"): 3, ("cancelled", "caller"): 1}


def test_what_the_front_door_refuses_is_counted_with_its_reason(small_server: Any, small: Any) -> None:
    watch = Watch(small_server)
    running = small.open("voxcpm2", LONG)
    next(message for message in running if message.infer_response.outputs)
    assert "is full" in small.ask("voxcpm2", TEXT).errors[0]
    running.cancel()
    watch.settle(catalogue.REQUESTS, 2)
    assert watch.ends(catalogue.REQUESTS, "voxcpm2") == {("error", "full"): 1, ("cancelled", "caller"): 1}
    assert watch.ends(catalogue.STAGE_REQUESTS, "voxcpm2_talker") == {("error", "full"): 1, ("cancelled", "caller"): 1}


def test_times_and_audio_agree_with_what_the_caller_got(speech_server: Any, caller: Any) -> None:
    watch = Watch(speech_server)
    answers = [caller.ask("voxcpm2", TEXT) for _ in range(4)]
    seconds = sum(len(answer.samples()) / answer.column("SAMPLE_RATE")[0] for answer in answers)
    watch.settle(catalogue.REQUESTS, 4)
    assert watch.grown(catalogue.AUDIO_SECONDS) == pytest.approx(seconds)
    assert watch.grown(catalogue.CHARACTERS) == 4 * len(TEXT["TEXT"])
    for name in (catalogue.FIRST_AUDIO, catalogue.REAL_TIME_FACTOR):
        assert watch.grown(f"{name}_count") == 4
        assert watch.grown(f"{name}_bucket", le="+Inf") == 4
    walls = sum(answer.seconds for answer in answers)
    first = watch.grown(f"{catalogue.FIRST_AUDIO}_sum")
    assert 0 < first < walls
    # Each factor is (wall - first audio) / audio, and all had the same audio.
    rest = watch.grown(f"{catalogue.REAL_TIME_FACTOR}_sum") * seconds / 4
    assert 0 < rest < walls - first + 1e-3
    for name in (catalogue.QUEUE_SECONDS, catalogue.FIRST_CHUNK):
        assert watch.grown(f"{name}_count") == 4
    assert 0 <= watch.grown(f"{catalogue.QUEUE_SECONDS}_sum") <= watch.grown(f"{catalogue.FIRST_CHUNK}_sum") < first


def test_the_ensemble_is_counted_where_it_passes(speech_server: Any, caller: Any) -> None:
    watch = Watch(speech_server)
    answer = caller.ask("voxcpm2_pipeline", TEXT, request_id="through-the-ensemble")
    assert caller.ask("voxcpm2_pipeline", {**TEXT, "TEXT": ""}).errors
    watch.settle(catalogue.STAGE_REQUESTS, 1, model="voxcpm2_talker")
    assert watch.ends(catalogue.STAGE_REQUESTS, "voxcpm2_talker") == {("ok", "length"): 1}
    assert watch.ends(catalogue.STAGE_REQUESTS, "voxcpm2_codec") == {("ok", "answered"): len(answer.responses)}
    assert watch.ends(catalogue.STAGE_REQUESTS, "voxcpm2_frontend") == {
        ("ok", "answered"): 1,
        ("error", "invalid_argument"): 1,
    }
    assert watch.ends(catalogue.REQUESTS, "voxcpm2") == {}
    (line,) = watch.lines("stream")
    assert (line["outcome"], line["reason"], line["chunks"]) == ("ok", "length", len(answer.responses))
    assert line["id"] == "through-the-ensemble"
    assert line["seconds"]["queue"] <= line["seconds"]["first_chunk"] <= line["seconds"]["total"]


def test_gauges_show_what_runs_and_go_back_to_nothing(speech_server: Any, caller: Any) -> None:
    watch = Watch(speech_server)
    calls = [caller.open("voxcpm2", LONG) for _ in range(3)]
    for call in calls:
        next(message for message in call if message.infer_response.outputs)
    time.sleep(0.5)
    now = watch.now()
    assert now.sum(catalogue.LIVE, model="voxcpm2") == 3
    for stage in ("voxcpm2_talker", "voxcpm2_codec"):
        assert now.sum(catalogue.SLOTS_IN_USE, model=stage) == 3
        assert 0 < now.sum(catalogue.SLOTS_IN_USE, model=stage) <= now.sum(catalogue.SLOTS, model=stage)
        assert 1 <= now.sum(catalogue.BATCH_SIZE, model=stage) <= 3
    for call in calls:
        call.cancel()
    watch.settle(catalogue.REQUESTS, 3)
    now = watch.now()
    for name in (catalogue.LIVE, catalogue.SLOTS_IN_USE, catalogue.QUEUE_DEPTH, catalogue.BATCH_SIZE):
        assert now.sum(name) == 0, name
    for stage in ("voxcpm2_talker", "voxcpm2_codec"):
        batches = watch.grown(catalogue.BATCHES, model=stage)
        assert batches <= watch.grown(catalogue.BATCH_STREAMS, model=stage) <= 3 * batches


def test_streams_that_wait_for_a_slot_are_the_queue(serving: Any, calling: Any) -> None:
    with serving({"voxcpm2_talker": {"max_num_seqs": 1}}) as server, calling(server.grpc_url) as caller:
        watch = Watch(server)
        running = caller.open("voxcpm2", LONG)
        next(message for message in running if message.infer_response.outputs)
        waiting = [caller.open("voxcpm2", TEXT) for _ in range(2)]
        until = time.monotonic() + SETTLE_SECONDS
        while watch.now().sum(catalogue.QUEUE_DEPTH, model="voxcpm2_talker") < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert watch.now().sum(catalogue.QUEUE_DEPTH, model="voxcpm2_talker") == 2
        time.sleep(HELD_SECONDS)
        running.cancel()
        for call in waiting:
            list(call)
        watch.settle(catalogue.REQUESTS, 3)
        assert watch.now().sum(catalogue.QUEUE_DEPTH) == 0
        waited = [line["seconds"]["queue"] for line in watch.lines("request") if line["outcome"] == "ok"]
        assert len(waited) == 2
        assert min(waited) > HELD_SECONDS


def test_each_request_has_one_line_in_the_log(speech_server: Any, caller: Any) -> None:
    watch = Watch(speech_server)
    spoken = caller.ask("voxcpm2", TEXT, request_id="spoken")
    caller.ask("voxcpm2", {**TEXT, "VOICE": "nobody"}, request_id='broken"\n{"event": "request"}')
    leave_after_first_audio(caller, "voxcpm2", request_id="left")
    watch.settle(catalogue.REQUESTS, 3)
    lines = watch.lines("request")
    assert [line["id"] for line in lines] == ["spoken", 'broken"\n{"event": "request"}', "left"]
    ok, refused, left = lines
    assert (ok["outcome"], ok["reason"], ok["pipeline"]) == ("ok", "length", "voxcpm2")
    assert (ok["text_chars"], ok["chunks"]) == (len(TEXT["TEXT"]), len(spoken.responses))
    assert ok["audio_seconds"] == pytest.approx(len(spoken.samples()) / spoken.column("SAMPLE_RATE")[0], abs=1e-3)
    times = ok["seconds"]
    assert set(times) == {"frontend", "queue", "talker_first_chunk", "codec_first_chunk", "first_audio", "total"}
    assert times["frontend"] + times["talker_first_chunk"] + times["codec_first_chunk"] <= times["first_audio"] + 1e-3
    assert times["queue"] <= times["talker_first_chunk"]
    assert times["first_audio"] < times["total"] < spoken.seconds
    assert (refused["outcome"], refused["reason"], refused["field"]) == ("error", "not_found", "VOICE")
    assert (refused["chunks"], refused["audio_seconds"]) == (0, 0)
    assert (left["outcome"], left["reason"]) == ("cancelled", "caller")
    assert left["chunks"] >= 1
    assert TEXT["TEXT"] not in json.dumps(lines), "what is said is nobody's business"


def test_a_callers_choice_of_outputs_changes_no_count(speech_server: Any, caller: Any) -> None:
    watch = Watch(speech_server)
    answer = caller.ask("voxcpm2", TEXT, ("PCM16",))
    assert {output.name for response in answer.responses for output in response.get_response().outputs} == {"PCM16"}
    watch.settle(catalogue.REQUESTS, 1)
    (line,) = watch.lines("request")
    assert line["audio_seconds"] == pytest.approx(watch.grown(catalogue.AUDIO_SECONDS), abs=1e-3)
    assert line["audio_seconds"] > 0


def test_counts_of_several_front_doors_add_up(serving: Any, calling: Any, tmp_path: Path) -> None:
    with serving({"voxcpm2": {"max_streams": 16}}, instances={"voxcpm2": 4}) as server:
        watch = Watch(server)
        with calling(server.grpc_url) as caller:
            answers = caller.ask_all("voxcpm2", [TEXT] * 16)
            assert not any(answer.errors for answer in answers)
            watch.settle(catalogue.REQUESTS, 16)
            assert watch.grown(catalogue.REQUESTS) == 16
            assert watch.grown(f"{catalogue.FIRST_AUDIO}_count") == 16
            used = [i for i in range(4) if watch.grown(catalogue.REQUESTS, replica=str(i))]
            assert len(used) > 1
            calls = [caller.open("voxcpm2", LONG) for _ in range(8)]
            for call in calls:
                next(message for message in call if message.infer_response.outputs)
            time.sleep(0.5)
            assert watch.now().sum(catalogue.LIVE, model="voxcpm2") == 8
            for call in calls:
                call.cancel()
            watch.settle(catalogue.REQUESTS, 24)
            assert watch.now().sum(catalogue.LIVE) == 0


def test_the_document_lists_what_the_server_tells(speech_server: Any, caller: Any, pipeline: str) -> None:
    caller.ask(pipeline, TEXT)
    caller.ask(pipeline, {**TEXT, "TEXT": ""})
    leave_after_first_audio(caller, pipeline)
    time.sleep(0.5)
    scrape = Scrape(speech_server.metrics_url)
    text, *others = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").split("### The launcher, the gateway")
    assert others
    rows = re.findall(r"^\| `(triton_speech_\w+)` \| (\w+) \| ([^|]*?) ?\|", text, re.MULTILINE)
    assert dict(row[:2] for row in rows) == scrape.kinds
    for name, kind, labels in rows:
        documented = set(re.findall(r"`(\w+)`", labels)) | {"model", "replica"}
        suffix = "_count" if kind == "histogram" else ""
        told = [dict(its) for own, its in scrape.series if own == name + suffix]
        assert told
        assert all(set(one) == documented for one in told), name
    assert sum(len(name) > 0 for name, _ in scrape.series) < 600


def test_probes_are_not_counted(speech_server: Any, caller: Any, pipeline: str) -> None:
    watch = Watch(speech_server)
    assert caller.ask(pipeline, {}, request_id=PROBE_ID).errors
    assert caller.ask(pipeline, {}, request_id="somebody").errors
    watch.settle("triton_speech_stage_requests_total", 1, outcome="error")
    assert watch.grown("triton_speech_stage_requests_total", outcome="error") == 1
    assert [line["id"] for line in watch.lines("request")] == (["somebody"] if pipeline == "voxcpm2" else [])
