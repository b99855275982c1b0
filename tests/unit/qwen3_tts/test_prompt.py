"""Prompts: what stands where, and the way between stages."""

import itertools

import pytest
import torch

from triton_speech.families.qwen3_tts.config import Qwen3TTSConfig
from triton_speech.families.qwen3_tts.prompt import NOTHING, REFERENCE, SPEAKER, Layout, Prompt, Words, lay_out
from triton_speech.families.qwen3_tts.tiny_config import talker_fields

IDS = {
    "im_start_token_id": 1,
    "im_end_token_id": 2,
    "assistant_token_id": 3,
    "tts_pad_token_id": 4,
    "tts_bos_token_id": 5,
    "tts_eos_token_id": 6,
    "text_vocab_size": 50,
}
CONFIG = Qwen3TTSConfig.model_validate(talker_fields("base", IDS, 16))
ROLE = (1, 3, 9)
PAD, BOS, EOS = 4, 5, 6
CODEC_PAD, CODEC_BOS, THINK, NO_THINK, THINK_BOS, THINK_EOS = 900, 901, 903, 904, 905, 906


def rows(layout: Layout) -> list[tuple[int, int]]:
    return list(zip(layout.text, layout.audio, strict=True))


HEAD = [(1, NOTHING), (3, NOTHING), (9, NOTHING), (PAD, NO_THINK), (PAD, THINK_BOS), (PAD, THINK_EOS)]


def test_text_trails_the_prompt_one_token_for_each_frame() -> None:
    layout = lay_out(Prompt(Words(ROLE, (20, 21, 22))), CONFIG)
    assert rows(layout) == [*HEAD, (BOS, CODEC_PAD), (20, CODEC_BOS)]
    assert layout.trailing == [21, 22, EOS]


def test_the_whole_text_may_stand_before_the_first_frame() -> None:
    layout = lay_out(Prompt(Words(ROLE, (20, 21), non_streaming=True)), CONFIG)
    text = [(20, CODEC_PAD), (21, CODEC_PAD), (EOS, CODEC_PAD), (PAD, CODEC_BOS)]
    assert rows(layout) == [*HEAD, (BOS, CODEC_PAD), *text]
    assert layout.trailing == []


def test_instruction_language_and_speaker_have_their_places() -> None:
    layout = lay_out(Prompt(Words(ROLE, (20,), instruction=(30, 31), language=911, speaker=930)), CONFIG)
    tags = [(PAD, THINK), (PAD, THINK_BOS), (PAD, 911), (PAD, THINK_EOS), (PAD, 930)]
    assert rows(layout)[2:-2] == [*HEAD[:3], *tags]
    assert rows(layout)[:2] == [(30, NOTHING), (31, NOTHING)]


def test_a_recordings_frames_stand_beside_the_text() -> None:
    words = Words(ROLE, (20, 21, 22), reference_text=(10, 11))
    layout = lay_out(Prompt(words, torch.zeros(64), torch.zeros(3, 16, dtype=torch.int64)), CONFIG)
    heard = [(10, CODEC_BOS), (11, REFERENCE), (20, REFERENCE), (21, REFERENCE)]
    assert rows(layout) == [*HEAD, (PAD, SPEAKER), (BOS, CODEC_PAD), *heard]
    assert layout.trailing == [22, EOS]


def test_a_recording_longer_than_the_text_is_heard_with_padding() -> None:
    words = Words(ROLE, (20,), reference_text=(10,))
    layout = lay_out(Prompt(words, torch.zeros(64), torch.zeros(4, 16, dtype=torch.int64)), CONFIG)
    assert rows(layout)[-5:] == [(10, CODEC_BOS), (20, REFERENCE), (EOS, REFERENCE), (PAD, REFERENCE), (PAD, REFERENCE)]
    assert layout.trailing == []


@pytest.mark.parametrize(
    ("language", "speaker", "streams", "instruction", "frames"),
    list(itertools.product((None, 911), (None, "control", "vector"), (True, False), ((), (30, 31, 32)), (None, 1, 9))),
)
def test_a_prompts_length_is_that_of_its_rows(
    language: int | None, speaker: str | None, streams: bool, instruction: tuple[int, ...], frames: int | None
) -> None:
    words = Words(
        ROLE,
        (20, 21, 22, 23),
        reference_text=None if frames is None else (10, 11),
        instruction=instruction,
        language=language,
        speaker=930 if speaker == "control" else None,
        non_streaming=not streams,
        vector_size=64,
    )
    vector = torch.zeros(64) if speaker == "vector" else None
    prompt = Prompt(words, vector, None if frames is None else torch.zeros(frames, 16, dtype=torch.int64))
    assert prompt.length == len(lay_out(prompt, CONFIG).text)
    assert Words.unpack(words.pack()) == words
    assert min(words.pack()) >= 0


def test_an_empty_transcript_is_not_an_absent_one() -> None:
    words = Words(ROLE, (20,), reference_text=())
    assert Words.unpack(words.pack()).reference_text == ()


def test_frames_and_their_text_need_each_other() -> None:
    with pytest.raises(ValueError, match="need each other"):
        Prompt(Words(ROLE, (20,)), None, torch.zeros(3, 16, dtype=torch.int64))
    with pytest.raises(ValueError, match="need each other"):
        Prompt(Words(ROLE, (20,), reference_text=(1,)))


@pytest.mark.parametrize("packed", [[], [1, 2], [0, 0, 0, 0, 0, 64, 1, 3], [0, 0, 0, 0, 0, 64, 1, 3, 9]])
def test_a_list_that_is_no_prompt_is_refused(packed: list[int]) -> None:
    with pytest.raises(ValueError, match="must have"):
        Words.unpack(packed)
