"""Stored voices without a server: what is sent, what is read, what the command line prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triton_speech_client import InvalidRequest, ServerError, ServerUnavailable, VoiceNotFound
from triton_speech_client.cli import main
from triton_speech_client.cli.voice import details, summary, table
from triton_speech_client.errors import error_from_grpc, error_from_text
from triton_speech_client.voices import Voice, build_command, read_voice, read_voices

ANN = Voice(
    "ann", "voxcpm2", "continuation", "0123456789abcdef", "2026-11-30T12:00:00+00:00", {"PROMPT_LATENTS": 7},
    {"PROMPT_AUDIO": "00ff"}, "One two.",
)  # fmt: skip
BROKEN = Voice("bob", problem="is damaged or cut off")


def texts(tensors: dict[str, Any]) -> dict[str, bytes]:
    assert {(values.shape, values.dtype.name) for values in tensors.values()} == {((1,), "object")}
    return {name: values.item() for name, values in tensors.items()}


def test_only_what_was_given_is_sent() -> None:
    assert texts(build_command("list")) == {"COMMAND": b"list"}
    assert texts(build_command("show", "ann")) == {"COMMAND": b"show", "NAME": b"ann"}
    assert texts(build_command("add", "ann", reference=b"R", prompt_audio=None, family="voxcpm2")) == {
        "COMMAND": b"add",
        "NAME": b"ann",
        "FAMILY": b"voxcpm2",
        "REFERENCE_AUDIO": b"R",
    }
    assert texts(build_command("add", "Zoë", prompt_audio=b"P", prompt_text="")) == {
        "COMMAND": b"add",
        "NAME": "Zoë".encode(),
        "PROMPT_AUDIO": b"P",
        "PROMPT_TEXT": b"",
    }


def test_samples_become_a_file_and_paths_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(b"anything")
    sent = texts(build_command("add", "x", reference=(np.zeros(4, np.int16), 16000), prompt_audio=tmp_path / "a.flac"))
    assert sent["REFERENCE_AUDIO"].startswith(b"RIFF")
    assert sent["PROMPT_AUDIO"] == b"anything"


@pytest.mark.parametrize(
    ("name", "recordings", "field"),
    [
        (7, {}, "NAME"),
        ("\udcff", {}, "NAME"),
        ("x", {"family": 7}, "FAMILY"),
        ("x", {"reference": 7}, "REFERENCE_AUDIO"),
        ("x", {"reference": "no/such/file.wav"}, "REFERENCE_AUDIO"),
        ("x", {"prompt_text": b"x"}, "PROMPT_TEXT"),
    ],
)
def test_what_cannot_be_sent_raises_with_its_field(name: Any, recordings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        build_command("add", name, **recordings)
    assert error.value.field == field


def test_an_option_of_speech_is_no_option_of_a_voice() -> None:
    with pytest.raises(TypeError, match="unknown option 'seed'; known are reference, prompt_audio"):
        build_command("add", "x", seed=1)  # type: ignore[call-arg]


def test_answers_are_read_also_those_of_a_newer_server() -> None:
    assert read_voice(json.dumps({"name": "ann", "family": "voxcpm2", "colour": "blue"}).encode()) == Voice(
        "ann", "voxcpm2"
    )
    first, second = read_voices(json.dumps({"voices": [{"name": "a"}, {"name": "b", "problem": "is x"}]}).encode())
    assert (first.usable, second.usable) == (True, False)
    for nonsense in (b"", b"7", b"\xff"):
        with pytest.raises(ServerError):
            read_voices(nonsense)


def test_errors_of_the_model_voices() -> None:
    assert isinstance(error_from_text("NAME: 'x' is not known; known are those"), VoiceNotFound)
    missing = error_from_text("Request for unknown model: 'voices' is not found")
    assert type(missing) is ServerError
    assert "does not offer the model 'voices'" in str(missing)


def test_a_full_stage_is_not_told_as_a_lost_connection() -> None:
    full = error_from_grpc("UNAVAILABLE", "the reference encoder is full (2); try again in a moment", "host:1")
    assert isinstance(full, ServerUnavailable)
    assert str(full) == "the reference encoder is full (2); try again in a moment"


def test_the_table_has_a_line_for_each_voice() -> None:
    lines = table([Voice("default", "voxcpm2", "built_in"), ANN, BROKEN]).splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "default", "ann", "bob"]
    assert lines[2].split() == ["ann", "voxcpm2", "continuation", "2026-11-30T12:00:00+00:00", "01234567"]
    assert lines[3].endswith("unusable: it is damaged or cut off")


def test_one_voice_in_a_line_and_in_full() -> None:
    assert summary(ANN) == "ann (voxcpm2, continuation): 7 frames of PROMPT_LATENTS, version 01234567"
    shown = details(ANN).splitlines()
    assert shown[0].split() == ["name", "ann"]
    assert "SHA-256 of PROMPT_AUDIO   00ff" in shown
    assert not any(line.startswith("unusable") for line in shown)
    assert details(BROKEN).splitlines() == ["name      bob", "unusable  it is damaged or cut off"]


def test_names_of_foreign_files_do_not_steer_the_terminal() -> None:
    shown = table([Voice("a\x1b[31m\nb", problem="has a name that no voice can have")])
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2


@pytest.mark.parametrize("arguments", [[], ["rename"], ["show"], ["add"], ["add", "x", "--reference"]])
def test_wrong_arguments_exit_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["voice", *arguments])
    assert error.value.code == 2


def test_an_absent_server_is_one_sentence(closed_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voice", "list", "--url", f"127.0.0.1:{closed_port}"]) == 1
    assert "no connection to the server" in capsys.readouterr().err
