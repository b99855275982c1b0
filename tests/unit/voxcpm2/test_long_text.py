"""What VoxCPM2's frontend makes of a text of several segments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triton_speech.errors import SpeechError
from triton_speech.families.voxcpm2.frontend import FrontendParameters, VoxCPM2Frontend
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.long_text import cut
from triton_speech.request import SpeechRequest

SENTENCE = "The quick brown fox jumps over the lazy dog. "


def frontend(folder: Path, parameters: dict[str, Any] | None = None, **checkpoint: Any) -> VoxCPM2Frontend:
    config = write_tiny_checkpoint(folder) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | checkpoint))
    return VoxCPM2Frontend.from_checkpoint(folder, FrontendParameters(**parameters or {}))


def test_the_segments_are_what_each_would_be_alone(tmp_path: Path) -> None:
    made = frontend(tmp_path, {"segment_chars": 50})
    first, rest = made.prepare_long(SpeechRequest(SENTENCE * 3), has_voice=False)
    alone = made.prepare(SpeechRequest(SENTENCE.strip()))
    assert [first, *rest.more] == [alone] * 3
    assert (rest.frames_per_second, rest.max_frames) == (12.5, None)


def test_a_limit_of_seconds_is_of_the_whole_stream(tmp_path: Path) -> None:
    made = frontend(tmp_path)
    _, rest = made.prepare_long(SpeechRequest(SENTENCE, max_seconds=120, is_limited=True), has_voice=False)
    assert rest.max_frames == 1500


@pytest.mark.parametrize(("follows", "has_voice"), [(True, False), (True, True), (False, False)])
def test_an_instruction_is_heard_once_where_its_voice_is_followed(
    tmp_path: Path, follows: bool, has_voice: bool
) -> None:
    made = frontend(tmp_path, {"segment_chars": 50}, follows_reference=follows)
    request = SpeechRequest(SENTENCE * 2, instruction="A deep voice.")
    first, rest = made.prepare_long(request, has_voice=has_voice)
    is_followed = follows and not has_voice
    assert first == made.prepare(SpeechRequest(SENTENCE.strip(), instruction="A deep voice."))
    assert (rest.more[0] == first) is not is_followed
    # An eighth of the tiny model's 512 positions is less than ten seconds.
    assert rest.follow_frames == (64 if is_followed else 0)


def test_every_segment_continues_the_prompt(tmp_path: Path) -> None:
    made = frontend(tmp_path, {"segment_chars": 50})
    request = SpeechRequest(SENTENCE * 2, prompt_text="As I said, ", has_prompt_audio=True)
    first, rest = made.prepare_long(request, has_voice=True)
    assert rest.more == [first]
    assert len(first.tokens) > len(made.prepare(SpeechRequest(SENTENCE.strip())).tokens)


def test_a_segment_of_too_many_tokens_is_cut_further(tmp_path: Path) -> None:
    made = frontend(tmp_path)
    first, rest = made.prepare_long(SpeechRequest("\u6c34" * 290), has_voice=False)
    assert all(len(segment.tokens) <= 256 for segment in [first, *rest.more])
    with pytest.raises(SpeechError, match=r"TEXT: has .* tokens, at most 256 fit"):
        made.prepare(SpeechRequest("\u6c34" * 290))


def test_a_segment_of_nothing_but_pictures_is_left_out(tmp_path: Path) -> None:
    made = frontend(tmp_path, {"segment_chars": 50})
    text = SENTENCE + "\U0001f600 " * 100 + SENTENCE
    first, rest = made.prepare_long(SpeechRequest(text), has_voice=False)
    assert len([first, *rest.more]) < len(cut(text, 50, lambda _: True))
    with pytest.raises(SpeechError, match="TEXT: holds nothing that can be spoken"):
        made.prepare_long(SpeechRequest("\U0001f600 " * 60), has_voice=False)


def test_the_checkpoint_says_how_long_a_segment_is_unless_the_deployment_does(tmp_path: Path) -> None:
    by_checkpoint = frontend(tmp_path / "a", segment_chars=50)
    by_parameter = frontend(tmp_path / "b", {"segment_chars": 300}, segment_chars=50)
    counts = [
        len(made.prepare_long(SpeechRequest(SENTENCE * 3), has_voice=False)[1].more)
        for made in (by_checkpoint, by_parameter)
    ]
    assert counts == [2, 0]
