"""Triton's perf_analyzer on every model of a real server, and what its export says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from triton_speech_client.cli import main
from triton_speech_client.errors import InvalidRequest
from triton_speech_client.perf_analyzer.inputs import Input, write_inputs
from triton_speech_client.perf_analyzer.report import CUT_SHORT, Experiment, read_export, table

OWN = Path(sys.prefix) / "perf_analyzer" / "perf_analyzer"
PROGRAM = str(OWN) if OWN.is_file() else shutil.which("perf_analyzer")
STREAMED = ["voxcpm2", "voxcpm2_pipeline", "voxcpm2_talker"]
UNARY = ["voices", "voxcpm2_codec", "voxcpm2_frontend", "voxcpm2_reference"]
REQUESTS = 3
TRIES = 3


@pytest.fixture(scope="module")
def program() -> str:
    if PROGRAM is None:
        pytest.skip(f"perf_analyzer is not there: python tests/perf/get_perf_analyzer.py {OWN.parent}")
    tried = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=60, check=False)
    if tried.returncode:
        pytest.skip(f"perf_analyzer does not run here: {tried.stderr.strip()[-200:]}")
    return PROGRAM


@pytest.fixture(scope="module")
def inputs(speech_server: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Input]:
    folder = tmp_path_factory.mktemp("inputs")
    return {one.model: one for one in write_inputs(folder, speech_server.grpc_url, seconds=1.0)}


def test_every_pipeline_and_stage_has_a_file(inputs: dict[str, Input]) -> None:
    assert sorted(inputs) == sorted(STREAMED + UNARY)
    assert [model for model in sorted(inputs) if inputs[model].streaming] == STREAMED
    assert all(json.loads(one.path.read_text(encoding="utf-8"))["data"] for one in inputs.values())


def measured(words: list[str], folder: Path, export: Path) -> tuple[list[Experiment], str]:
    """What is in its export, and what it prints. It may end, with exit code 0, before all of the export is written."""
    for _ in range(TRIES):
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        try:
            return read_export(export), done.stdout
        except InvalidRequest as error:
            if CUT_SHORT not in str(error):
                raise
    raise AssertionError(f"{TRIES} exports were cut short")


@pytest.mark.parametrize("model", STREAMED + UNARY)
def test_perf_analyzer_measures_the_model(
    model: str, program: str, inputs: dict[str, Input], speech_server: Any, tmp_path: Path
) -> None:
    more = ["--request-count", str(REQUESTS), "--concurrency-range", "2"]
    words = inputs[model].command(speech_server.grpc_url, more, program)
    (experiment,), printed_text = measured(words, tmp_path, inputs[model].path.with_suffix(".export.json"))
    assert (experiment.mode, experiment.level) == ("concurrency", 2)
    assert len(experiment.requests) >= REQUESTS - 1
    assert all((one.responses > 1) == (model in STREAMED) for one in experiment.requests)
    if model in STREAMED:
        assert all(0 < one.first < one.whole for one in experiment.requests)
        # What it prints is the mean of whole streams, whatever it says.
        assert "using the first response for measuring latency" in printed_text
        (printed,) = re.findall(r"Avg latency: (\d+) usec", printed_text)
        firsts = sum(one.first for one in experiment.requests) / len(experiment.requests)
        wholes = sum(one.whole for one in experiment.requests) / len(experiment.requests)
        assert abs(int(printed) / 1e6 - wholes) < abs(int(printed) / 1e6 - firsts)
    has_audio = model in ("voxcpm2", "voxcpm2_pipeline", "voxcpm2_codec")
    assert all((one.played is not None) == has_audio for one in experiment.requests)


def export(tmp_path: Path) -> Path:
    second = 1_000_000_000
    begin = 1796082122891064379
    request = {
        "timestamp": begin,
        "response_timestamps": [begin + second // 10, begin + second // 2, begin + 2 * second],
        "response_outputs": [
            {"SAMPLE_RATE": 4, "PCM16": []},
            {"SAMPLE_RATE": 4, "PCM16": [1, 2, 3, 4]},
            {"SAMPLE_RATE": 4, "PCM16": [1, 2, 3, 4]},
        ],
    }
    content = {"experiments": [{"experiment": {"mode": "concurrency", "value": 1}, "requests": [request]}]}
    path = tmp_path / "export.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_stream_begins_with_its_first_samples(tmp_path: Path) -> None:
    (experiment,) = read_export(export(tmp_path))
    (request,) = experiment.requests
    assert request.first == pytest.approx(0.5)
    assert request.whole == pytest.approx(2.0)
    assert request.played is not None
    assert request.played.real_time_factor == pytest.approx(1.0)
    assert request.played.underrun == pytest.approx(0.5)
    assert "| 500.0 / 500.0 / 500.0 ms | 2000.0 / 2000.0 / 2000.0 ms |" in table([experiment])


def test_the_report_says_what_perf_analyzers_own_latency_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf-analyzer", "report", str(export(tmp_path))]) == 0
    assert "own latency is that of the whole stream" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is no --profile-export-file"),
        ("[]", "is no --profile-export-file"),
        ('{"experiments": [{"requests": [{"request_inputs": {"TEXT": "\\u00', "is cut short"),
        ('{"experiments": [{"requests": []}]}', "is no --profile-export-file"),
        ('{"experiments": []}', "holds no request"),
    ],
)
def test_a_file_that_is_no_export_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=said):
        read_export(path)


def test_an_export_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf-analyzer", "report", "no.json"]) == 1
    assert "'no.json' cannot be read" in capsys.readouterr().err


def test_an_export_with_a_recording_in_it_is_read(tmp_path: Path) -> None:
    path = export(tmp_path)
    raw = path.read_bytes().replace(
        b'"timestamp"', b'"request_inputs": {"REFERENCE_AUDIO": "RIFF\x80\xc1"}, "timestamp"'
    )
    path.write_bytes(raw)
    assert len(read_export(path)[0].requests) == 1
