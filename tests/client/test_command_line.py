"""The command line without a server: arguments, exit codes, and what it refuses before sending."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from triton_speech_client import AudioChunk, Speech
from triton_speech_client.cli import COMMANDS, main
from triton_speech_client.cli.audio_file import AudioFile
from triton_speech_client.cli.say import add_arguments, options, summary

SPEECH = Speech(np.zeros(24000, np.int16), 48000, "stop", seconds_to_first_audio=0.045, wall_seconds=0.1)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def chunk(index: int, value: int) -> AudioChunk:
    return AudioChunk(np.full(100, value, np.int16), 48000, index, "")


def test_help_lists_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_python(
        "import sys\nfrom triton_speech_client.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'tritonclient', 'soundfile') if m in sys.modules])"
    )
    assert all(name in shown.stdout for name in COMMANDS)
    assert shown.stdout.endswith("[]\n")


@pytest.mark.parametrize("package", ["tritonclient", "soundfile"])
def test_a_package_that_is_not_installed_is_named_with_the_extra(package: str) -> None:
    # None in sys.modules makes the import fail as it does where the package is absent.
    shown = run_python(
        f"import sys; sys.modules['{package}'] = None\n"
        "from triton_speech_client.cli import main\nsys.exit(main(['say', 'Hello.']))"
    )
    assert shown.returncode == 2
    assert shown.stderr == (
        f"triton-speech: 'say' needs {package}, which is not installed: pip install 'triton-speech[client]'\n"
    )


@pytest.mark.parametrize("arguments", [[], ["shout"], ["say"], ["say", "x", "--seed", "one"]])
def test_wrong_arguments_exit_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2


def test_say_sends_only_what_was_given() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = options(
        parser.parse_args(
            [
                *("x", "--seed", "7", "--steps", "4", "--prompt", "p.wav", "--prompt-text", "", "--priority", "1"),
                *("--temperature", "0", "--top-k", "5", "--top-p", "0.5", "--repetition-penalty", "1.5"),
                *("--codes-temperature", "0.1", "--codes-top-k", "0", "--codes-top-p", "0.9"),
            ]
        )
    )
    assert {name: value for name, value in given.items() if value is not None} == {
        "seed": 7,
        "inference_steps": 4,
        "prompt_audio": Path("p.wav"),
        "prompt_text": "",
        "priority": 1,
        "temperature": 0.0,
        "top_k": 5,
        "top_p": 0.5,
        "repetition_penalty": 1.5,
        "codes_temperature": 0.1,
        "codes_top_k": 0,
        "codes_top_p": 0.9,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "speech.xyz"], "ends in '.xyz'; known are .wav"),
        (["-o", "no/such/folder/speech.wav"], "lies in a folder that does not exist"),
        (["--reference", "no.wav"], "REFERENCE_AUDIO: 'no.wav' cannot be read"),
        (["--seed", "-1"], "SEED: -1 is not within 0 to"),
        (["--url", "http://127.0.0.1:8000"], "is not host:port"),
        (["--timeout", "0"], "timeout: 0.0 is not a positive number"),
    ],
)
def test_what_cannot_be_sent_is_one_sentence_and_exit_code_1(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["say", "Hello.", *arguments]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_play_without_anything_to_play_with_is_refused_before_sending(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert main(["say", "Hello.", "--play"]) == 1
    assert "--play needs aplay or ffplay on the PATH, or the package sounddevice" in capsys.readouterr().err


def test_an_unreachable_server_is_one_sentence_and_no_file(
    closed_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["say", "Hello.", "-o", str(tmp_path / "x.wav"), "--url", f"127.0.0.1:{closed_port}"]) == 1
    assert f"no connection to the server at 127.0.0.1:{closed_port}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_summary_tells_where_how_long_and_how_fast() -> None:
    assert summary(SPEECH, Path("a.wav"), played=False) == (
        "a.wav: 0.50 s of speech, made in 0.10 s, real-time factor 0.200, first audio after 45 ms"
    )
    assert summary(SPEECH, None, played=True) == "played: 0.50 s of speech, first audio after 45 ms"


def test_the_summary_tells_that_the_speech_was_cut() -> None:
    cut = Speech(SPEECH.samples, 48000, "length", 0.045, 0.1)
    assert summary(cut, Path("a.wav"), played=False).endswith("cut at the length limit")


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    with AudioFile(path) as file:
        file.write(chunk(0, 1))
        assert not path.exists()
        file.write(chunk(1, 2))
    samples, sample_rate = soundfile.read(path, dtype="int16")
    assert sample_rate == 48000
    assert samples.tolist() == [1] * 100 + [2] * 100
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_file_leaves_nothing_and_keeps_the_older_one(
    tmp_path: Path, interruption: type[BaseException]
) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(b"older")

    def write_and_be_interrupted() -> None:
        with AudioFile(path) as file:
            file.write(chunk(0, 1))
            raise interruption

    with pytest.raises(interruption):
        write_and_be_interrupted()
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_where_only_the_client_is_installed_the_demo_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from triton_speech.serve import locate

    monkeypatch.setattr(locate, "wheel_root", lambda: None)
    monkeypatch.setattr(locate, "CONTAINER_BIN", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert main(["demo", "Hello.", "-o", str(tmp_path / "hello.wav")]) == 1
    captured = capsys.readouterr()
    assert captured.err == "triton-speech: no Triton server was found; pip install 'triton-speech[server]'\n"
    assert captured.out == ""
