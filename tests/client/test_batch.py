"""``triton-speech batch`` against a real server: a file for each line, and a second run that goes on."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import soundfile

from triton_speech_client.cli import main

LINES = ["Good morning.", "", "  The kettle is on the table.  ", "See you on Friday."]
FILES = ["00001.wav", "00003.wav", "00004.wav"]
PROGRAM = [sys.executable, "-c", "import sys; from triton_speech_client.cli import main; sys.exit(main())"]
TOO_LONG = "word " * 50_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text("\n".join(LINES), encoding="utf-8")
    return tmp_path


def words(server: Any, folder: Path, *more: str) -> list[str]:
    short = ["--url", server.grpc_url, "--seed", "1", "--max-seconds", "0.5"]
    return ["batch", str(folder / "in.txt"), str(folder / "out"), *short, *more]


def audio(folder: Path) -> dict[str, int]:
    """The audio files by the time of their last change; each is one that can be read."""
    paths = sorted((folder / "out").glob("*.wav"))
    assert all(soundfile.info(path).duration > 0.1 for path in paths)
    return {path.name: path.stat().st_mtime_ns for path in paths}


def entries(folder: Path) -> list[Any]:
    text = (folder / "out" / "index.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line]


def test_every_line_that_is_not_blank_becomes_a_file(
    speech_server: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(speech_server, folder)) == 0
    assert list(audio(folder)) == FILES
    assert {entry["file"]: (entry["line"], entry["text"]) for entry in entries(folder)} == {
        "00001.wav": (1, LINES[0]),
        "00003.wav": (3, LINES[2].strip()),
        "00004.wav": (4, LINES[3]),
    }
    assert capsys.readouterr().out == f"{folder / 'out'}: 3 lines, 0 were there, 3 made now\n"
    assert sorted(path.name for path in (folder / "out").iterdir()) == [*FILES, "index.jsonl"]


def test_a_second_run_makes_only_what_is_missing_or_has_changed(
    speech_server: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(words(speech_server, folder))
    before = audio(folder)
    assert main(words(speech_server, folder)) == 0
    assert audio(folder) == before
    (folder / "out" / FILES[0]).unlink()
    (folder / "in.txt").write_text("\n".join([*LINES[:3], "See you on Sunday.", "Bye."]), encoding="utf-8")
    assert main(words(speech_server, folder)) == 0
    after = audio(folder)
    assert list(after) == [*FILES, "00005.wav"]
    assert [name for name in FILES if after[name] == before[name]] == ["00003.wav"]
    assert "4 lines, 1 were there, 3 made now" in capsys.readouterr().out


def test_other_options_make_other_speech(speech_server: Any, folder: Path) -> None:
    main(words(speech_server, folder))
    before = audio(folder)
    assert main(words(speech_server, folder, "--steps", "4")) == 0
    assert all(changed > before[name] for name, changed in audio(folder).items())


def test_lines_that_fail_are_listed_and_the_others_are_made(
    speech_server: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.txt").write_text("\n".join([LINES[0], TOO_LONG, LINES[3]]), encoding="utf-8")
    assert main(words(speech_server, folder)) == 1
    assert list(audio(folder)) == ["00001.wav", "00003.wav"]
    told = (folder / "out" / "errors.txt").read_text(encoding="utf-8")
    assert told.startswith("line 2: TEXT: ")
    assert told.count("\n") == 1
    captured = capsys.readouterr()
    assert "1 line failed" in captured.err
    assert told in captured.err

    (folder / "in.txt").write_text("\n".join([LINES[0], "Short.", LINES[3]]), encoding="utf-8")
    assert main(words(speech_server, folder)) == 0
    assert not (folder / "out" / "errors.txt").exists()


def test_what_would_fail_in_every_line_ends_the_run_at_once(
    speech_server: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(speech_server, folder, "--voice", "nobody")) == 1
    assert capsys.readouterr().err.count("VOICE: 'nobody' is not known") == 1
    assert not (folder / "out" / "errors.txt").exists()
    assert audio(folder) == {}


def test_a_run_that_is_killed_leaves_whole_files_and_the_next_one_goes_on(speech_server: Any, folder: Path) -> None:
    (folder / "in.txt").write_text("\n".join(f"This is line {n}." for n in range(40)), encoding="utf-8")
    process = subprocess.Popen([*PROGRAM, *words(speech_server, folder, "--concurrency", "2")])
    limit = time.monotonic() + 60
    while not (folder / "out").is_dir() or len(audio(folder)) < 3:
        assert time.monotonic() < limit
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    before = audio(folder)
    known = {entry["file"] for entry in entries(folder)}
    assert known <= set(before)
    # As if the last entry had been cut.
    with (folder / "out" / "index.jsonl").open("a", encoding="utf-8") as index:
        index.write('{"file": "00040.w')
    done = subprocess.run([*PROGRAM, *words(speech_server, folder)], timeout=120, check=False)
    assert done.returncode == 0
    after = audio(folder)
    assert len(after) == 40
    assert all(after[name] == before[name] for name in known)


def test_an_interrupted_run_ends_with_130_and_no_traceback(speech_server: Any, folder: Path) -> None:
    (folder / "in.txt").write_text("\n".join("word " * 45 for _ in range(4)), encoding="utf-8")
    command = [*PROGRAM, "batch", str(folder / "in.txt"), str(folder / "out"), "--url", speech_server.grpc_url]
    process = subprocess.Popen([*command, "--steps", "100"], stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 60
    while not list((folder / "out").glob(".*.part")):
        assert time.monotonic() < limit
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "triton-speech: interrupted\n"
    assert not list((folder / "out").glob(".*.part"))


def test_a_terminal_shows_a_bar(speech_server: Any, folder: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
    done = subprocess.run(
        [*PROGRAM, *words(speech_server, folder)], stderr=theirs, stdout=subprocess.DEVNULL, timeout=120, check=False
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "100%|" in shown
    assert "3/3" in shown


@pytest.mark.parametrize(
    ("content", "more", "said"),
    [
        (b"caf\xe9", [], "is not UTF-8 at byte 3"),
        (b"Hello.", ["--concurrency", "0"], "concurrency: 0 is not a positive number"),
        (b"Hello.", ["--reference", "no.wav"], "REFERENCE_AUDIO: 'no.wav' cannot be read"),
    ],
)
def test_what_cannot_be_spoken_is_refused_before_anything_is_sent(
    tmp_path: Path, content: bytes, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_bytes(content)
    assert main(["batch", str(tmp_path / "in.txt"), str(tmp_path / "out"), *more]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
