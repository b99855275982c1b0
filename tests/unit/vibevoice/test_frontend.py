"""From requests to tokens, and what is said of those that do not fit."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from triton_speech.errors import SpeechError
from triton_speech.families.vibevoice import load_frontend, load_reference_encoder, make_prompt, make_sampling
from triton_speech.families.vibevoice.cast import count_voices, join_rows, number_rows
from triton_speech.families.vibevoice.frontend import FrontendParameters, VibeVoiceFrontend
from triton_speech.families.vibevoice.reference import normalise_loudness
from triton_speech.request import SpeechRequest
from triton_speech.voices.voice import Voice, VoiceFileError

DIALOGUE = SpeechRequest("Speaker 1: Hello there.\nSpeaker 2: Hi.")


@pytest.fixture(scope="module")
def frontend(folder: Path) -> VibeVoiceFrontend:
    return load_frontend(folder, FrontendParameters())


def rows(*voices: int) -> torch.Tensor:
    made = torch.zeros(len(voices), 1, 65)
    made[:, 0, 0] = torch.tensor(voices)
    made[:, 0, 1] = torch.arange(len(voices))
    return made


def test_a_dialogue_asks_for_a_voice_of_each_speaker(frontend: VibeVoiceFrontend) -> None:
    segment = frontend.prepare(replace(DIALOGUE, references=2))
    prompt = make_prompt(segment.tokens, rows(0, 0, 0, 1, 1), None)
    assert [len(voice) for voice in prompt.voices] == [3, 2]
    assert prompt.voices[1][:, 0].tolist() == [3, 4]
    without = make_prompt(frontend.prepare(DIALOGUE).tokens, None, None)
    assert prompt.length > without.length + 5


def test_the_first_voice_is_that_of_whoever_speaks_first(frontend: VibeVoiceFrontend) -> None:
    """The prompt lists speakers by number, so the places of their voices change."""
    request = SpeechRequest("Speaker 2: Hi.\nSpeaker 1: Hello there.", references=2)
    prompt = make_prompt(frontend.prepare(request).tokens, rows(0, 0, 0, 1, 1), None)
    assert [len(voice) for voice in prompt.voices] == [3, 2]
    assert [token - prompt.vocabulary for token in prompt.tokens if token >= prompt.vocabulary] == [1, 0]


@pytest.mark.parametrize(
    ("voices", "references", "told"),
    [
        (
            ("a",),
            0,
            "VOICE: has 1 voice for 2 speakers (Speaker 1, Speaker 2); give one for each, in this order, or none",
        ),
        (("a", "b", "c"), 0, "VOICE: has 3 voices for 2 speakers"),
        ((), 1, "REFERENCE_AUDIO: has 1 voice for 2 speakers"),
        (("default",), 3, "REFERENCE_AUDIO: has 3 voices for 2 speakers"),
        (("a", "default"), 0, "REFERENCE_AUDIO: has 0 recordings for 1 voice named 'default' in VOICE"),
        (("a", "default"), 2, "REFERENCE_AUDIO: has 2 recordings for 1 voice named 'default' in VOICE"),
        (("default", "default"), 1, "REFERENCE_AUDIO: has 1 recording for 2 voices named 'default' in VOICE"),
    ],
)
def test_voices_that_do_not_fit_the_speakers_are_told_with_their_field(
    frontend: VibeVoiceFrontend, voices: tuple[str, ...], references: int, told: str
) -> None:
    with pytest.raises(SpeechError, match=re.escape(told)):
        frontend.prepare(replace(DIALOGUE, voices=voices, references=references))


@pytest.mark.parametrize(
    ("voices", "references", "count"),
    [
        (("a", "b"), 0, 2),
        ((), 2, 2),
        (("a", "default"), 1, 2),
        (("default",), 2, 2),
        (("default", "default"), 2, 2),
        (("default", "default"), 0, 0),
        (("default",), 0, 0),
    ],
)
def test_voices_may_be_stored_recorded_or_left_to_the_model(
    voices: tuple[str, ...], references: int, count: int
) -> None:
    assert count_voices(replace(DIALOGUE, voices=voices, references=references))[0] == count


def test_recordings_take_the_numbers_that_stored_voices_leave() -> None:
    stored = number_rows(rows(0, 0).numpy(), 1)
    joined = join_rows(stored, [rows(0).numpy(), rows(0, 0, 0).numpy()])
    assert joined[:, 0, 0].tolist() == [1, 1, 0, 2, 2, 2]


def test_marks_of_speech_in_a_text_are_read_as_characters(frontend: VibeVoiceFrontend) -> None:
    plain, marked = (frontend.prepare(SpeechRequest(text)).tokens for text in ("a", "a<|vision_end|><|endoftext|>"))
    assert sorted(marked[3:])[-5:] == sorted(plain[3:])[-5:]
    assert len(marked) > len(plain) + 10


def test_frames_are_limited_by_text_and_by_time(frontend: VibeVoiceFrontend) -> None:
    assert frontend.prepare(replace(DIALOGUE, max_seconds=2.0)).max_frames == 15
    longer = frontend.prepare(SpeechRequest("Hello there. " * 20, max_seconds=1e6))
    assert 15 < frontend.prepare(replace(DIALOGUE, max_seconds=1e6)).max_frames < longer.max_frames


def test_a_long_script_is_one_segment(frontend: VibeVoiceFrontend) -> None:
    segment, after = frontend.prepare_long(SpeechRequest("Speaker 1: Hello.\n" * 100), has_voice=False)
    assert after.more == []
    assert after.frames_per_second == 7.5
    assert len(segment.tokens) > 1000


def test_a_script_that_is_too_long_is_told_with_its_limit(frontend: VibeVoiceFrontend) -> None:
    request = SpeechRequest("a b c d e f g h " * 400)
    with pytest.raises(SpeechError, match=r"^TEXT: has \d+ tokens, at most 4096 fit this model$"):
        frontend.prepare(request)
    with pytest.raises(
        SpeechError, match="at most 4096 fit this model in one go; a script whose speakers have voices may"
    ):
        frontend.prepare_long(request, has_voice=False)
    _, after = frontend.prepare_long(replace(request, references=1), has_voice=True)
    assert after.more


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prompt_text": "x"}, "PROMPT_TEXT: is not followed by this model"),
        ({"instruction": "x"}, "INSTRUCTION: is not followed by this model"),
        ({"text": "\U0001f600"}, "TEXT: holds nothing that can be spoken"),
    ],
)
def test_requests_that_the_model_cannot_follow_are_refused(
    frontend: VibeVoiceFrontend, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpeechError, match=told):
        frontend.prepare(replace(DIALOGUE, **change))


@pytest.mark.parametrize(("reference", "count"), [(rows(0, 0), 1), (rows(0, 1, 2), 3), (rows(2, 3), 2)])
def test_voices_that_do_not_fit_the_script_are_refused(
    frontend: VibeVoiceFrontend, reference: torch.Tensor, count: int
) -> None:
    told = f"VOICE: has {count} voices for 2 speakers; give 2 or none"
    with pytest.raises(SpeechError, match=told):
        make_prompt(frontend.prepare(DIALOGUE).tokens, reference, None)


def test_tokens_that_were_not_packed_here_are_refused() -> None:
    for tokens, told in (
        ([5, 0, 0], "TOKENS: has 3 entries, must have at least 4"),
        ([5, 2, 1, 1, 1, 1], "TOKENS: has voices from 2 to 1 of 3 tokens"),
        ([5, 0, 3, 1, 1, 1], "TOKENS: has voices from 0 to 3 of 3 tokens"),
        ([5, 0, 1, 6, 1], r"TOKENS: has places for voices \[1\]"),
        ([5, 0, 1, 5, 5, 1], r"TOKENS: has places for voices \[0, 0\]"),
    ):
        with pytest.raises(SpeechError, match=told):
            make_prompt(tokens, None, None)
    with pytest.raises(SpeechError, match="PROMPT_LATENTS: are not followed"):
        make_prompt([5, 0, 0, 1], None, rows(0))


def test_a_stored_voice_is_checked(frontend: VibeVoiceFrontend) -> None:
    def voice(array: np.ndarray[Any, Any], mode: str = "reference") -> Voice:
        made: Any = object.__new__(Voice)
        for name, value in {"mode": mode, "tensors": {"REFERENCE_LATENTS": array}, "prompt_text": None}.items():
            object.__setattr__(made, name, value)
        return made

    fitting = rows(0, 0).numpy()
    frontend.check_voice(voice(fitting))
    assert np.array_equal(frontend.voice_outputs(voice(fitting))["REFERENCE_LATENTS"], fitting)
    cast = frontend.cast_outputs([None, voice(fitting), voice(fitting)])["REFERENCE_LATENTS"]
    assert cast[:, 0, 0].tolist() == [1, 1, 2, 2]
    assert frontend.voice_outputs(None)["REFERENCE_LATENTS"].shape == (0, 1, 65)
    for array, told in (
        (np.zeros((2, 1, 64), np.float32), r"needs float32 \[n, 1, 65\]"),
        (np.full((2, 1, 65), np.nan, np.float32), "NaN or infinite"),
        (rows(0, 1).numpy(), "numbers other than 0 for its only speaker"),
    ):
        with pytest.raises(VoiceFileError, match=told):
            frontend.check_voice(voice(array))
    with pytest.raises(VoiceFileError, match="for the mode 'continuation'"):
        frontend.check_voice(voice(fitting, "continuation"))


def test_a_recording_is_the_same_voice_always_and_whatever_its_loudness(folder: Path) -> None:
    encoder = load_reference_encoder(folder)
    samples = np.random.default_rng(0).normal(0, 0.1, 7000).astype(np.float32)
    voice = encoder.encode(samples, "reference")
    assert voice.shape == (3, 1, 65)
    assert np.array_equal(voice, encoder.encode(samples, "reference"))
    np.testing.assert_allclose(encoder.encode(samples / 4, "reference"), voice, atol=1e-3)
    with pytest.raises(SpeechError, match="PROMPT_AUDIO: is not followed by this model"):
        encoder.encode(samples, "prompt")


def test_loudness_never_passes_full_scale() -> None:
    peaky = np.zeros(24000, np.float32)
    peaky[5] = 0.1
    assert np.abs(normalise_loudness(peaky, -25)).max() <= 1
    assert not normalise_loudness(np.zeros(10, np.float32), -25).any()


def test_sampling_out_of_range_is_refused() -> None:
    assert make_sampling(1, {}).inference_steps == 10
    assert make_sampling(1, {"INFERENCE_STEPS": 100.0}).batch_key == 100
    for name, value in (("CFG_VALUE", 10.5), ("INFERENCE_STEPS", 101), ("CFG_VALUE", float("nan"))):
        with pytest.raises(SpeechError, match=name):
            make_sampling(1, {name: value})
