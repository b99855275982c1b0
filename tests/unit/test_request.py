"""Reading a request from its tensors, without a server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from triton_speech.errors import SpeechError
from triton_speech.request import NumberField, RequestLimits, SpeechRequest, parse_request
from triton_speech.streaming.schedule import ChunkSchedule

LIMITS = RequestLimits(max_text_chars=20, max_instruction_chars=10, max_seconds=60)
SAMPLING = (
    NumberField("CFG_VALUE", 0, 10, 2.0),
    NumberField("INFERENCE_STEPS", 2, 100, 10, integer=True),
)


def text(*values: str | bytes) -> Any:
    return np.array([v.encode() if isinstance(v, str) else v for v in values], np.object_)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


def read(**inputs: Any) -> SpeechRequest:
    return parse_request({"TEXT": text("Hi."), **inputs}, LIMITS, SAMPLING)


def test_a_text_alone_is_a_request_and_all_else_is_absent() -> None:
    assert read() == SpeechRequest(text="Hi.", max_seconds=60, sampling={"CFG_VALUE": 2.0, "INFERENCE_STEPS": 10})


def test_every_field_is_read() -> None:
    request = read(
        VOICE=text("Ann_2-b"),
        LANGUAGE=text("de"),
        REFERENCE_AUDIO=text(b"\x00\xff"),
        INSTRUCTION=text("Slowly."),
        SEED=np.array([2**64 - 1], np.uint64),
        MAX_SECONDS=f32(1.5),
        CHUNK_SCHEDULE=i32(1, 2),
        PRIORITY=i32(1),
        CFG_VALUE=f32(3),
        INFERENCE_STEPS=i32(4),
    )
    assert request == SpeechRequest(
        text="Hi.",
        voice="Ann_2-b",
        voices=("Ann_2-b",),
        references=1,
        language="de",
        instruction="Slowly.",
        seed=2**64 - 1,
        max_seconds=1.5,
        is_limited=True,
        priority=1,
        chunk_schedule=ChunkSchedule((1, 2)),
        sampling={"CFG_VALUE": 3.0, "INFERENCE_STEPS": 4},
    )


def test_a_prompt_is_its_audio_and_its_text() -> None:
    request = read(PROMPT_AUDIO=text(b"RIFF"), PROMPT_TEXT=text("One."))
    assert (request.has_prompt_audio, request.prompt_text) == (True, "One.")


def test_limits_are_included_in_what_is_allowed() -> None:
    assert read(TEXT=text("\u00e4" * 20)).text == "\u00e4" * 20
    for value in (0, 10):
        assert read(CFG_VALUE=f32(value)).sampling["CFG_VALUE"] == value
    # 0.1 is no binary number: as a float32 it must not fall below the limit.
    assert read(MAX_SECONDS=f32(0.1)).max_seconds == pytest.approx(0.1)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("TEXT: is empty", {"TEXT": text("")}),
    ("TEXT: is blank", {"TEXT": text(" \n\t\u3000")}),
    ("TEXT: has 21 characters, at most 20 are allowed", {"TEXT": text("x" * 21)}),
    ("TEXT: is not UTF-8 (byte 2)", {"TEXT": text(b"ab\xff")}),
    ("TEXT: has 2 elements, must have 1", {"TEXT": text("a", "b")}),
    ("TEXT: has 0 elements, must have 1", {"TEXT": text()}),
    ("VOICE: is empty", {"VOICE": text("")}),
    ("VOICE: has 65 characters, at most 64 are allowed", {"VOICE": text("v" * 65)}),
    ("VOICE: '../x' is not a voice's name: letters A to Z, digits, '-' and '_' are allowed", {"VOICE": text("../x")}),
    ("LANGUAGE: is blank", {"LANGUAGE": text(" ")}),
    ("INSTRUCTION: has 11 characters, at most 10 are allowed", {"INSTRUCTION": text("x" * 11)}),
    ("PROMPT_TEXT: is missing; PROMPT_AUDIO needs its transcript", {"PROMPT_AUDIO": text(b"RIFF")}),
    ("PROMPT_AUDIO: is missing; PROMPT_TEXT is the transcript of it", {"PROMPT_TEXT": text("One.")}),
    (
        "INSTRUCTION: cannot be given together with PROMPT_TEXT",
        {"INSTRUCTION": text("Slow."), "PROMPT_TEXT": text("One."), "PROMPT_AUDIO": text(b"RIFF")},
    ),
    ("SEED: has 2 elements, must have 1", {"SEED": np.array([1, 2], np.uint64)}),
    ("MAX_SECONDS: 61 is out of range, allowed is 0.1 to 60", {"MAX_SECONDS": f32(61)}),
    ("MAX_SECONDS: nan is not a number, allowed is 0.1 to 60", {"MAX_SECONDS": f32(np.nan)}),
    ("CFG_VALUE: inf is not a number, allowed is 0 to 10", {"CFG_VALUE": f32(np.inf)}),
    ("CFG_VALUE: -0.5 is out of range, allowed is 0 to 10", {"CFG_VALUE": f32(-0.5)}),
    ("INFERENCE_STEPS: 1 is out of range, allowed is 2 to 100", {"INFERENCE_STEPS": i32(1)}),
    ("INFERENCE_STEPS: -2147483648 is out of range, allowed is 2 to 100", {"INFERENCE_STEPS": i32(-(2**31))}),
    ("CHUNK_SCHEDULE: has 0 entries, must have 1 to 32", {"CHUNK_SCHEDULE": i32()}),
    ("CHUNK_SCHEDULE: holds 0, each entry must be 1 to 64 frames", {"CHUNK_SCHEDULE": i32(1, 0)}),
]


@pytest.mark.parametrize(("says", "inputs"), REFUSED, ids=[says[:40] for says, _ in REFUSED])
def test_what_is_wrong_is_said_with_field_and_limit(says: str, inputs: dict[str, Any]) -> None:
    with pytest.raises(SpeechError) as error:
        read(**inputs)
    assert (error.value.text, error.value.code) == (says, "INVALID_ARG")


def test_a_missing_text_is_said() -> None:
    with pytest.raises(SpeechError, match=r"^TEXT: is missing$"):
        parse_request({}, LIMITS, SAMPLING)


def test_several_voices_are_read_in_their_order_where_the_family_has_several() -> None:
    limits = RequestLimits(max_voices=4)
    fields = {"TEXT": text("Hi."), "VOICE": text("b", "a"), "REFERENCE_AUDIO": text("1", "2", "3")}
    request = parse_request(fields, limits, SAMPLING)
    assert (request.voice, request.voices, request.references) == ("b", ("b", "a"), 3)
    for name in ("VOICE", "REFERENCE_AUDIO"):
        for count in (0, 5):
            told = f"{name}: has {count} elements, 1 to 4 are allowed"
            with pytest.raises(SpeechError, match=told):
                parse_request({"TEXT": text("Hi."), name: text(*["a"] * count)}, limits, SAMPLING)
        with pytest.raises(SpeechError, match=f"{name}: has 2 elements, must have 1"):
            read(**{name: text("a", "b")})
    with pytest.raises(SpeechError, match="VOICE: is empty"):
        parse_request({"TEXT": text("Hi."), "VOICE": text("a", "")}, limits, SAMPLING)
