"""``triton-speech demo``: what ``make demo`` runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

COMMAND = [str(Path(sys.executable).with_name("triton-speech")), "demo"]


@pytest.fixture
def run_demo(tmp_path: Path):
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny")
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, "--checkpoints", str(checkpoint), *arguments],
            env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=180,
        )

    return run


def test_it_writes_the_sentence_and_leaves_nothing_behind(run_demo, tmp_path):
    """It once started two servers, of which one was left to the system to end."""
    done = run_demo("-o", str(tmp_path / "hello.wav"), "--", 'She said "$5", -really-.')
    assert done.returncode == 0, done.stderr
    assert soundfile.info(tmp_path / "hello.wav").duration > 0.5
    assert done.stdout.count("ready in") == 1
    assert str(tmp_path / "hello.wav") in done.stdout
    assert list((tmp_path / "tmp").glob("triton-speech-*")) == []


def test_a_name_that_cannot_be_written_is_told_before_the_server_starts(run_demo, tmp_path):
    done = run_demo("-o", str(tmp_path / "missing" / "hello.wav"), "Hello.")
    assert done.returncode == 1
    assert "folder that does not exist" in done.stderr
    assert "starting" not in done.stdout
