"""The bench's arithmetic on streams made by hand, and real load on a real server."""

from __future__ import annotations

import asyncio
import csv
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from triton_speech_client.bench import load
from triton_speech_client.bench.load import LoadProcesses, Run, arrivals
from triton_speech_client.bench.speakers import Target
from triton_speech_client.bench.streams import DEFINITIONS, Job, Piece, Played, play
from triton_speech_client.bench.summary import figures, percentile
from triton_speech_client.bench.texts import LENGTHS, bundled_texts
from triton_speech_client.cli import main
from triton_speech_client.errors import ServerUnavailable, SpeechClientError

JOB = Job("Good morning.", 1)
PNG = b"\x89PNG\r\n\x1a\n"


def played(due: float, *arrivals: tuple[float, float], failure: str = "", sent: float | None = None) -> Played:
    end = arrivals[-1][0] if arrivals else due
    return Played(JOB, due, due if sent is None else sent, end, arrivals, "stop", failure, failure and "text")


def job(index: int) -> Job:
    return Job("Hi.", index)


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100), (0.001, 1)], ids=lambda v: str(v)
)
def test_percentiles_are_nearest_ranks(share: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == value


def test_the_underrun_is_the_longest_wait_of_a_player_from_the_first_audio_on() -> None:
    # 0.5 s are heard from 1.0 to 1.5; the next comes at 1.75, the last long before it is due.
    stream = played(0.75, (1.0, 0.5), (1.75, 2.0), (2.0, 0.5))
    assert (stream.first_audio, stream.underrun) == (0.25, 0.25)
    assert stream.real_time_factor == pytest.approx(1.25 / 3)
    assert stream.playing_factor == pytest.approx(1.0 / 3)
    assert played(0, (1.0, 0.5), (1.5, 0.5)).underrun == 0


def test_only_what_was_due_within_the_window_counts() -> None:
    inside, before, after = played(10, (10.5, 1.0)), played(9.9, (10.1, 4.0)), played(20, (20.5, 1.0))
    row = figures("rate", 1, Run([before, inside, after], 10, 20))
    assert (row.requests, row.first_audio_p50_ms, row.requests_per_s) == (1, 500, 0.2)
    # Audio of the warm-up's requests that arrives within the window was made within the window.
    assert row.audio_s_per_s == pytest.approx(0.5)


def test_failures_are_counted_by_reason_and_are_not_clean() -> None:
    every = [played(0, (0.1, 1.0)), played(0, (0.1, 0.5), (0.7, 0.5)), played(0, failure="ServerUnavailable")]
    row = figures("concurrency", 3, Run(every, 0, 1))
    assert (row.requests, row.failed, row.failures) == (3, 1, {"ServerUnavailable: text": 1})
    assert row.clean_share == pytest.approx(1 / 3)
    assert figures("concurrency", 3, Run(every, 0, 1), player_buffer=0.1).clean_share == pytest.approx(2 / 3)


def test_a_level_without_requests_has_no_figures() -> None:
    row = figures("rate", 1, Run([], 0, 1))
    assert row.requests == 0
    assert math.isnan(row.first_audio_p50_ms)


class Slow:
    """A server that takes no time, behind a load process that was late."""

    async def speak(self, job: Job) -> AsyncIterator[Piece]:
        yield Piece(1.0, "stop")

    async def close(self) -> None:
        pass


def test_a_request_that_was_sent_late_was_due_when_it_was_due() -> None:
    """Else a load generator that falls behind would hide the very waits that it makes."""
    due = time.monotonic() - 5
    stream = asyncio.run(play(Slow(), JOB, due))
    assert stream.first_audio >= 5
    assert stream.sent - stream.due >= 5


def test_arrivals_are_a_poisson_process() -> None:
    times = arrivals(rate=50, seconds=100, seed=1)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times == sorted(times) == arrivals(50, 100, 1) != arrivals(50, 100, 2)
    assert 0 < times[0] < times[-1] < 100
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=0.1)
    # Of an exponential distribution the deviation is the mean.
    assert statistics.stdev(gaps) == pytest.approx(0.02, rel=0.1)


def test_the_bundled_texts_have_the_lengths_that_they_are_named_for() -> None:
    words = {length: [len(text.split()) for text in bundled_texts((length,))] for length in LENGTHS}
    assert max(words["short"]) <= 6 < 9 <= min(words["medium"])
    assert max(words["medium"]) <= 12 < 28 <= min(words["long"])
    assert max(words["long"]) <= 33 < 85 <= min(words["paragraph"])
    mixed = bundled_texts(("short", "paragraph"))
    assert [len(text.split()) > 50 for text in mixed] == [False, True] * 8


def test_an_open_loop_sends_by_its_schedule_from_several_processes(speech_server: Any) -> None:
    target = Target(speech_server.grpc_url, options={"max_seconds": 0.4})
    with LoadProcesses(target, 2) as processes:
        run = processes.open_loop(job, rate=8, warmup=0.5, seconds=2, seed=3)
    start = run.begin - 0.5
    expected = arrivals(8, 2.5, 3)
    assert sorted(one.due - start for one in run.played) == pytest.approx(expected)
    assert all(one.sent >= one.due and one.ok for one in run.played)
    assert figures("rate", 8, run).requests == sum(at >= 0.5 for at in expected)


def test_a_closed_loop_keeps_its_callers_busy_and_no_more(speech_server: Any) -> None:
    target = Target(speech_server.grpc_url, options={"max_seconds": 0.4})
    with LoadProcesses(target, 2) as processes:
        run = processes.closed_loop(job, callers=3, warmup=0.5, seconds=2)
    edges = sorted([(one.sent, 1) for one in run.played] + [(one.end, -1) for one in run.played])
    running = most = 0
    for _, change in edges:
        running += change
        most = max(most, running)
    assert most == 3
    assert len({one.job.seed for one in run.played}) == len(run.played) > 3


def test_callers_that_outrun_their_jobs_go_on_with_new_seeds(
    speech_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_MOST_A_SECOND", 1)
    target = Target(speech_server.grpc_url, options={"max_seconds": 0.1})
    with LoadProcesses(target, 2) as processes:
        run = processes.closed_loop(job, callers=2, warmup=0, seconds=2)
    made = 2 + 2 * 2
    assert len({one.job.seed for one in run.played}) == len(run.played) > made


def test_a_load_process_that_is_killed_is_told_of(speech_server: Any) -> None:
    with LoadProcesses(Target(speech_server.grpc_url), 1) as processes:
        processes._processes[0].kill()
        with pytest.raises(SpeechClientError, match="a load process has ended"):
            processes.play_at([(time.monotonic(), JOB)])


def test_the_command_writes_a_table_json_csv_and_a_picture(
    speech_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"bench.{name}" for name in ("json", "csv", "png")}
    words = ["bench", "--url", speech_server.grpc_url, "--concurrency", "1", "2", "--duration", "2", "--warmup", "0.5"]
    words += ["--processes", "2", "--max-seconds", "0.4", "--texts", "short", "--json", str(files["json"])]
    assert main([*words, "--csv", str(files["csv"]), "--plot", str(files["png"])]) == 0
    out = capsys.readouterr().out
    assert "| concurrency | requests (failed) | first audio p50 / p90 / p99 |" in out
    assert DEFINITIONS in out
    content = json.loads(files["json"].read_text(encoding="utf-8"))
    assert content["definitions"] == DEFINITIONS
    assert [level["level"] for level in content["levels"]] == [1, 2]
    assert all(level["failed"] == 0 < level["first_audio_p50_ms"] < math.inf for level in content["levels"])
    rows = list(csv.DictReader(files["csv"].open(encoding="utf-8")))
    assert len(rows) == sum(level["requests"] for level in content["levels"])
    assert all(float(row["first_audio_ms"]) > 0 and float(row["audio_s"]) > 0 for row in rows)
    assert files["png"].read_bytes().startswith(PNG)


def test_when_every_request_fails_the_reason_is_told_and_the_exit_code_is_1(
    speech_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "--url", speech_server.grpc_url, "--duration", "1", "--warmup", "0", "--voice", "nobody"]
    assert main(words) == 1
    assert "failed: VoiceNotFound: VOICE: 'nobody' is not known" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--duration", "0"], "duration: 0 is not a positive number"),
        (["--rate", "-1"], "rate or concurrency: -1 is not a positive number"),
        (["--warmup", "-1"], "warmup: -1 is negative"),
        (["--text-file", "no.txt"], "'no.txt' cannot be read"),
        (["--json", "no/such/folder/x.json"], "lies in a folder that does not exist"),
        (["--gateway", "127.0.0.1:8080"], "is no URL of a gateway"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_load(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 1
    assert said in capsys.readouterr().err


def test_without_matplotlib_the_extra_is_named_before_any_load() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from triton_speech_client.cli import main\nsys.exit(main(['bench', '--plot', 'x.png']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "triton-speech: 'bench' needs matplotlib, which is not installed: pip install 'triton-speech[bench]'\n"
    )


def test_a_server_that_goes_away_is_a_failure_with_a_reason(cable: Any) -> None:
    async def listen() -> Played:
        speaker = Target(cable.url, options={"inference_steps": 100, "chunk_schedule": [1]}).connect()
        asyncio.get_running_loop().call_later(1.0, cable.cut)
        try:
            return await play(speaker, Job("word " * 45, 1))
        finally:
            await speaker.close()

    stream = asyncio.run(listen())
    assert stream.failure == ServerUnavailable.__name__
    assert not stream.ok
