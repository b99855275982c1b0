"""``triton-speech say`` against a real server."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from triton_speech_client import SpeechClient
from triton_speech_client.cli import main

TEXT = "The quick brown fox jumps over the lazy dog."
SAY = ["--seed", "4", "--max-seconds", "1"]


def test_say_writes_the_speech_as_a_wav_file(
    speech_server: Any, client: SpeechClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "speech.wav"
    assert main(["say", TEXT, "-o", str(path), "--url", speech_server.grpc_url, *SAY]) == 0
    samples, sample_rate = soundfile.read(path, dtype="int16")
    expected = client.synthesize(TEXT, seed=4, max_seconds=1, pcm16=True)
    assert sample_rate == expected.sample_rate
    assert np.array_equal(samples, expected.samples)
    assert list(tmp_path.iterdir()) == [path]
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{path}: ")
    assert shown.err == ""  # no progress where stderr is no terminal


def test_say_reads_the_standard_input_and_writes_speech_wav(
    speech_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{TEXT}\n"))
    assert main(["say", "-", "--url", speech_server.grpc_url, *SAY]) == 0
    assert soundfile.info(tmp_path / "speech.wav").subtype == "PCM_16"


def test_an_error_is_one_sentence_and_leaves_no_file(
    speech_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["say", "", "-o", str(tmp_path / "x.wav"), "--url", speech_server.grpc_url]) == 1
    assert capsys.readouterr().err.startswith("triton-speech: TEXT: ")
    assert not list(tmp_path.iterdir())


def test_play_pipes_the_samples_to_a_program(
    speech_server: Any, client: SpeechClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "aplay"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/samples\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert main(["say", TEXT, "--play", "--url", speech_server.grpc_url, *SAY]) == 0
    expected = client.synthesize(TEXT, seed=4, max_seconds=1, pcm16=True)
    assert (tmp_path / "samples").read_bytes() == expected.samples.tobytes()
    assert "-r 48000" in (tmp_path / "arguments").read_text(encoding="utf-8")


def test_ctrl_c_exits_with_130_and_keeps_nothing(speech_server: Any, client: SpeechClient, tmp_path: Path) -> None:
    text = " ".join([TEXT] * 5)
    command = [sys.executable, "-c", "import sys; from triton_speech_client.cli import main; sys.exit(main())"]
    arguments = ["say", text, "-o", str(tmp_path / "x.wav"), "--url", speech_server.grpc_url]
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < limit:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "triton-speech: interrupted\n")
    assert not list(tmp_path.iterdir())
    assert client.synthesize(TEXT, max_seconds=1).duration > 0
