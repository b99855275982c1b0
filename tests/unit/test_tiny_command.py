"""``triton-speech tiny-checkpoint`` writes a checkpoint of any family, and over nobody's files."""

import argparse
from pathlib import Path

import pytest

from triton_speech.families import tiny_command
from triton_speech.families.registry import architecture_of, family_names, find_checkpoint


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    tiny_command.add_arguments(parser)
    return tiny_command.run(parser.parse_args(words))


@pytest.mark.parametrize("family", family_names())
def test_the_command_writes_a_checkpoint_that_is_found_as_its_familys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    assert command(str(tmp_path / "new" / "tiny"), "--seed", "3", "--family", family) == 0
    assert find_checkpoint(tmp_path / "new", "auto", family).name == "tiny"
    assert capsys.readouterr().out.count("\n") == 1


def test_without_a_family_it_is_voxcpm2s(tmp_path: Path) -> None:
    assert command(str(tmp_path / "tiny")) == 0
    assert architecture_of(tmp_path / "tiny") == "voxcpm2"


def test_a_family_that_is_none_is_refused_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command(str(tmp_path), "--family", "nobody")
    said = capsys.readouterr().err
    assert all(family in said for family in family_names())


def test_the_command_does_not_write_over_files_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("", encoding="utf-8")
    assert command(str(tmp_path)) == 2
    assert "--force" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["precious"]
    assert command(str(tmp_path), "--force") == 0


def test_the_command_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    assert command(str(file), "--force") == 2
    assert "is not a folder" in capsys.readouterr().err
