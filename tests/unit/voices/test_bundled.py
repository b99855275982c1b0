"""The voices of a checkpoint's own folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from triton_speech.voices.bundled import load_bundled
from triton_speech.voices.voice import Voice, VoiceFileError

Make = Callable[..., Voice]


def fits(voice: Voice) -> None:
    if voice.family != "voxcpm2":
        raise VoiceFileError("is of another family")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], None]:
    (tmp_path / "voices").mkdir()
    return lambda name, data: (tmp_path / "voices" / name).write_bytes(data) and None


def test_a_checkpoint_without_voices_has_none(tmp_path: Path) -> None:
    assert load_bundled(tmp_path, fits, ()) == {}


def test_voices_come_by_name_and_other_files_are_let_be(
    tmp_path: Path, make_voice: Make, write: Callable[[str, bytes], None]
) -> None:
    write("nora.safetensors", make_voice(2.0).to_bytes())
    write("ann.safetensors", make_voice(1.0).to_bytes())
    write("README.md", b"Two voices.")
    voices = load_bundled(tmp_path, fits, ("default",))
    assert {name: voice.version for name, voice in voices.items()} == {
        "ann": make_voice(1.0).version,
        "nora": make_voice(2.0).version,
    }


@pytest.mark.parametrize(
    ("name", "fields", "cut", "reason"),
    [
        ("ann", {}, 10, "is damaged or cut off"),
        ("ann", {"family": "other"}, 0, "is of another family"),
        ("default", {}, 0, "has the name of a built-in voice"),
        ("an n", {}, 0, "has a name that no voice can have"),
    ],
)
def test_one_that_cannot_be_used_is_named(
    tmp_path: Path,
    make_voice: Make,
    write: Callable[[str, bytes], None],
    name: str,
    fields: dict[str, str],
    cut: int,
    reason: str,
) -> None:
    data = make_voice(**fields).to_bytes()
    write(f"{name}.safetensors", data[: len(data) - cut])
    with pytest.raises(
        ValueError, match=f"^the checkpoint's voice voices/{name}.safetensors cannot be used: it {reason}"
    ):
        load_bundled(tmp_path, fits, ("default",))
