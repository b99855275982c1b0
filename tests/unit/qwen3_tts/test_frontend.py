"""From requests to the text side of prompts, for each kind of model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triton_speech.errors import SpeechError
from triton_speech.families.qwen3_tts.config import Qwen3TTSConfig
from triton_speech.families.qwen3_tts.frontend import FrontendParameters, Qwen3TTSFrontend
from triton_speech.families.qwen3_tts.prompt import Words
from triton_speech.families.qwen3_tts.settings import TEMPERATURE, TOP_K
from triton_speech.families.qwen3_tts.tiny import write_tiny_checkpoint
from triton_speech.families.qwen3_tts.tokenizer import Tokenizer
from triton_speech.families.qwen3_tts.voice import PROMPT, REFERENCE
from triton_speech.request import SpeechRequest
from triton_speech.voices.voice import Voice, VoiceFileError

Checkpoint = Callable[[str], Path]


def frontend(folder: Path, **parameters: Any) -> Qwen3TTSFrontend:
    return Qwen3TTSFrontend.from_checkpoint(folder, FrontendParameters(**parameters))


@pytest.mark.parametrize(
    ("kind", "asked", "set_up", "expected"),
    [
        ("base", None, None, False),
        ("base", True, None, True),
        ("base", None, True, True),
        ("custom_voice", None, None, True),
        ("voice_design", None, None, True),
        ("voice_design", False, None, False),
        ("voice_design", None, False, False),
        ("voice_design", True, False, True),
    ],
)
def test_an_explicit_false_differs_from_an_absent_choice(
    checkpoint: Checkpoint, kind: str, asked: bool | None, set_up: bool | None, expected: bool
) -> None:
    made = frontend(checkpoint(kind), non_streaming_mode=set_up)
    assert made.words("Hello.", voice="vivian", non_streaming=asked).non_streaming is expected


@pytest.mark.parametrize(
    ("language", "voice", "control"),
    [
        (None, "vivian", None),
        ("Auto", "VIVIAN", None),
        ("English", "vivian", 911),
        ("chinese", "vivian", 910),
        (None, "dylan", 920),
        ("Chinese", "Dylan", 920),
        ("english", "dylan", 911),
    ],
)
def test_a_dialect_takes_the_place_of_chinese(
    checkpoint: Checkpoint, language: str | None, voice: str, control: int | None
) -> None:
    words = frontend(checkpoint("custom_voice")).words("Hello.", language=language, voice=voice)
    assert words.language == control
    assert words.speaker == {"vivian": 930, "dylan": 931}[voice.lower()]


@pytest.mark.parametrize(
    ("kind", "fields", "code", "said"),
    [
        ("custom_voice", {}, "INVALID_ARG", "VOICE: is missing; this model speaks in the voices dylan, vivian"),
        ("custom_voice", {"voice": "bob"}, "NOT_FOUND", "VOICE: 'bob' is not known; known are dylan, vivian"),
        ("base", {"language": "klingon"}, "NOT_FOUND", "LANGUAGE: 'klingon' is not known; known are auto, chinese"),
        (
            "custom_voice",
            {"language": "beijing_dialect", "voice": "vivian"},
            "NOT_FOUND",
            "LANGUAGE: 'beijing_dialect' is not known",
        ),
        ("base", {"instruction": "Calm"}, "INVALID_ARG", "INSTRUCTION: is not followed by this base model"),
        ("voice_design", {"reference_text": "So."}, "INVALID_ARG", "PROMPT_TEXT: is not followed"),
        ("base", {"text": "\u200b"}, "INVALID_ARG", "TEXT: holds nothing that can be spoken"),
    ],
)
def test_what_a_model_cannot_do_is_refused(
    checkpoint: Checkpoint, kind: str, fields: dict[str, str], code: str, said: str
) -> None:
    asked = {"text": "Hello."} | fields
    with pytest.raises(SpeechError) as raised:
        frontend(checkpoint(kind)).words(asked.pop("text"), **asked)
    assert raised.value.code == code
    assert raised.value.text.startswith(said)


def test_a_request_is_packed_with_its_cap(checkpoint: Checkpoint) -> None:
    made = frontend(checkpoint("voice_design"), frames_per_token=2.0)
    request = SpeechRequest("Hello.", instruction="An old voice", language="german", max_seconds=120.0)
    prepared = made.prepare(request)
    words = Words.unpack(prepared.tokens)
    assert words == made.words("Hello.", instruction="An old voice", language="german")
    assert words.non_streaming
    assert prepared.max_frames == 2 * len(words.text) + 25
    assert made.prepare(replace(request, max_seconds=0.8)).max_frames == 10


def test_more_text_than_fits_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(SpeechError, match=r"TEXT: .* tokens, at most 2048 fit"):
        frontend(checkpoint("base")).prepare(SpeechRequest("x1" * 1100))


def test_defaults_are_the_checkpoints(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"temperature": 0.5, "top_k": 7}), encoding="utf-8")
    defaults = {field.name: field.default for field in frontend(folder).sampling}
    assert defaults[TEMPERATURE.name] == 0.5
    assert defaults[TOP_K.name] == 7
    assert defaults["CODES_TOP_K"] == 50


def test_controls_written_in_a_text_are_only_characters(checkpoint: Checkpoint) -> None:
    folder = checkpoint("base")
    config = Qwen3TTSConfig.from_checkpoint(folder)
    tokenizer = Tokenizer.from_checkpoint(folder, config)
    written = tokenizer.encode("<|im_end|><tts_pad><|im_start|>")
    assert max(written) < config.im_start_token_id
    assert len(written) > 20
    assert tokenizer.role[:2] == (config.im_start_token_id, config.assistant_token_id)


def voice(mode: str, text: str | None, **tensors: Any) -> Voice:
    return Voice(family="qwen3_tts", mode=mode, prompt_text=text, tensors=tensors)


VECTOR = np.zeros((4, 1, 16), dtype=np.float32)
PROMPTED = np.zeros((9, 1, 16), dtype=np.float32)


def test_stored_voices_of_both_modes_fit(checkpoint: Checkpoint) -> None:
    made = frontend(checkpoint("base"))
    made.check_voice(voice("reference", None, **{REFERENCE: VECTOR}))
    made.check_voice(voice("continuation", "So.", **{PROMPT: PROMPTED}))
    assert {name: array.shape for name, array in made.voice_outputs(None).items()} == {
        REFERENCE: (0, 1, 16),
        PROMPT: (0, 1, 16),
    }


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (("reference", None, {REFERENCE: VECTOR[:3]}), r"needs float32 \[4, 1, 16\]"),
        (("reference", None, {PROMPT: PROMPTED}), "holds PROMPT_LATENTS"),
        (("continuation", None, {PROMPT: PROMPTED}), "without its text"),
        (("continuation", "So.", {PROMPT: PROMPTED[:4]}), r"needs float32 \[more than 4, 1, 16\]"),
        (("reference", None, {REFERENCE: VECTOR * np.nan}), "NaN"),
    ],
)
def test_a_voice_that_does_not_fit_is_refused(checkpoint: Checkpoint, bad: Any, said: str) -> None:
    mode, text, tensors = bad
    with pytest.raises(VoiceFileError, match=said):
        frontend(checkpoint("base")).check_voice(voice(mode, text, **tensors))


def test_models_with_speakers_take_no_stored_voice(checkpoint: Checkpoint) -> None:
    with pytest.raises(VoiceFileError, match="needs a base model"):
        frontend(checkpoint("custom_voice")).check_voice(voice("reference", None, **{REFERENCE: VECTOR}))
