"""A voice's file: what is written comes back, and anything else is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from triton_speech.errors import SpeechError
from triton_speech.voices.name import check_name, is_name
from triton_speech.voices.voice import Voice, VoiceFileError

Make = Callable[..., Voice]
NAMES_REFUSED = ["", "../x", "/x", "a/b", "a.b", ".", "a b", "ä", "名前", "a\n", "a\x00", "-\u202e", "%2e%2e"]


def why_not(data: bytes) -> str:
    with pytest.raises(VoiceFileError) as caught:
        Voice.from_bytes(data)
    return str(caught.value)


def with_metadata(voice: Voice, **changes: str | None) -> bytes:
    """The voice's file with another header."""
    data = voice.to_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8:end])["__metadata__"]
    metadata = {name: value for name, value in {**metadata, **changes}.items() if value is not None}
    return safetensors.numpy.save(dict(voice.tensors), metadata)


def test_all_of_a_voice_comes_back(make_voice: Make) -> None:
    tensors = {
        "REFERENCE_LATENTS": np.random.default_rng(0).standard_normal((3, 2, 8)).astype(np.float32),
        "PROMPT_LATENTS": np.random.default_rng(1).standard_normal((5, 2, 8)).astype(np.float32),
    }
    voice = make_voice(mode="reference_continuation", tensors=tensors, prompt_text="Grüße, 你好.\n\x07 ")
    again = Voice.from_bytes(voice.to_bytes())
    assert replace(again, tensors={}) == replace(voice, tensors={})
    assert again.version == voice.version
    assert again.frames == {"PROMPT_LATENTS": 5, "REFERENCE_LATENTS": 3}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(again.tensors[name], tensor)
        assert again.tensors[name].dtype == np.float32


def test_absent_and_empty_prompt_texts_stay_apart(make_voice: Make) -> None:
    assert Voice.from_bytes(make_voice().to_bytes()).prompt_text is None
    assert Voice.from_bytes(make_voice(prompt_text="").to_bytes()).prompt_text == ""


def test_tensors_that_were_read_cannot_be_written_to(make_voice: Make) -> None:
    """One reader's mistake must not be heard by the next one."""
    voice = Voice.from_bytes(make_voice().to_bytes())
    with pytest.raises(ValueError, match="read-only"):
        voice.tensors["REFERENCE_LATENTS"][0] = 0


def test_the_version_depends_on_all_that_is_heard_and_told(make_voice: Make) -> None:
    voice = make_voice()
    assert voice.version == make_voice().version
    changed = [
        make_voice(fill=2.0),
        make_voice(frames=4),
        make_voice(family="other"),
        make_voice(mode="other"),
        make_voice(prompt_text="x"),
        make_voice(created="2026-11-30T12:00:01+00:00"),
        make_voice(sources={}),
        make_voice(tensors={"PROMPT_LATENTS": voice.tensors["REFERENCE_LATENTS"]}),
        make_voice(tensors={"REFERENCE_LATENTS": np.ones((6, 1, 8), np.float32)}),
        make_voice(tensors={"REFERENCE_LATENTS": np.ones((3, 2, 8), np.float64)}),
    ]
    assert len({voice.version, *(other.version for other in changed)}) == 1 + len(changed)


def test_a_file_that_is_cut_off_anywhere_is_refused(make_voice: Make) -> None:
    data = make_voice().to_bytes()
    for size in [*range(0, len(data), 7), len(data) - 1]:
        assert why_not(data[:size]) in ("is not a voice file", "is damaged or cut off")


def test_a_file_with_a_changed_byte_is_refused(make_voice: Make) -> None:
    data = make_voice().to_bytes()
    for place in range(0, len(data), 5):
        broken = bytearray(data)
        broken[place] ^= 1
        why_not(bytes(broken))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        bytes(100),
        b"\xff" * 100,
        b"RIFF" + bytes(1000),
        (10**9).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (20000).to_bytes(8, "little") + b"[" * 20000,
        safetensors.numpy.save({"x": np.zeros(3, np.float32)}),
        safetensors.numpy.save({"x": np.zeros(3, np.float32)}, {"format": "pt"}),
    ],
)
def test_other_files_are_not_voices(data: bytes) -> None:
    assert why_not(data) == "is not a voice file"


def test_a_newer_format_is_told_from_a_broken_file(make_voice: Make) -> None:
    assert why_not(with_metadata(make_voice(), format_version="2")) == (
        "has the format version '2'; this release reads 1"
    )


@pytest.mark.parametrize("field", ["family", "mode", "created", "sources"])
def test_a_file_without_a_field_is_refused(make_voice: Make, field: str) -> None:
    assert why_not(with_metadata(make_voice(), **{field: None})) == "is damaged or cut off"


@pytest.mark.parametrize(
    "changes", [{"version": None}, {"version": "0"}, {"prompt_text": "Other words."}, {"family": "x"}]
)
def test_a_file_that_somebody_edited_is_refused(make_voice: Make, changes: dict[str, str | None]) -> None:
    assert why_not(with_metadata(make_voice(), **changes)).startswith("was changed after it was written")


@pytest.mark.parametrize("name", ["a", "A-z_09", "v" * 64, "-", "__"])
def test_names_that_are_allowed(name: str) -> None:
    assert is_name(name)
    assert check_name("NAME", name) == name


@pytest.mark.parametrize("name", [*NAMES_REFUSED, "v" * 65])
def test_names_that_are_refused(name: str) -> None:
    """S6."""
    assert not is_name(name)
    with pytest.raises(SpeechError, match=r"^NAME: ") as caught:
        check_name("NAME", name)
    assert caught.value.code == "INVALID_ARG"


def test_sources_nested_without_end_are_damage(make_voice: Make) -> None:
    """They took every stage down that looked at the folder."""
    assert why_not(with_metadata(make_voice(), sources="[" * 100_000)) == "is damaged or cut off"
