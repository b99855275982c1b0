"""Errors cross Triton as bare texts: the code must be readable from the text."""

from __future__ import annotations

import pytest

from triton_speech.errors import SpeechError, full, invalid, unknown


@pytest.mark.parametrize(
    "error",
    [
        invalid("TEXT", "is empty"),
        invalid("CHUNK_SCHEDULE", "holds 0, each entry must be 1 to 64 frames"),
        invalid("PROMPT_AUDIO", "has\nlines: and a colon"),
        unknown("VOICE", "nobody", "default"),
        full("the talker's queue", 64),
        SpeechError("INTERNAL", "the talker failed on this stream; see the server's log"),
    ],
    ids=lambda error: error.text[:20],
)
@pytest.mark.parametrize("wrapped", ["{}", "in ensemble 'voxcpm2_pipeline', {}"])
def test_an_error_survives_as_its_text(error: SpeechError, wrapped: str) -> None:
    again = SpeechError.from_text(wrapped.format(error.text))
    assert again.code == error.code
    assert again.text.endswith(error.text)
    if error.code in ("INVALID_ARG", "NOT_FOUND"):
        assert again.text == error.text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Exceeds maximum queue size", "UNAVAILABLE"),
        ("the talker is full: no place came free within 30 s; try again in 1 s", "UNAVAILABLE"),
        ("Stub process 'voxcpm2_talker_0_0' is not healthy.", "UNAVAILABLE"),
        ("Failed for execute the inference request. Model 'voxcpm2_codec' is not ready.", "UNAVAILABLE"),
        ("Request for unknown model: 'voxcpm2_talker' has no available versions", "UNAVAILABLE"),
        ("the codec stage has died; what it had begun is lost, try again in a moment", "UNAVAILABLE"),
        ("VOICE: 'a is not known' is not a voice's name", "INVALID_ARG"),
        ("Text: is empty", "INTERNAL"),
        ("", "INTERNAL"),
    ],
)
def test_texts_of_others_get_a_code_too(text: str, code: str) -> None:
    error = SpeechError.from_text(text)
    assert (error.code, error.text) == (code, text)


def test_texts_name_what_was_given_and_what_is_allowed() -> None:
    assert str(invalid("TEXT", "is empty")) == "TEXT: is empty"
    assert str(unknown("VOICE", "nobody", "ann, bob")) == "VOICE: 'nobody' is not known; known are ann, bob"
    assert str(full("the server", 64)) == "the server is full (64); try again in 1 s"


def test_what_a_caller_wrote_is_repeated_in_part_only() -> None:
    """Errors travel in headers; a long one broke the connection."""
    assert str(unknown("NAME", "x" * 100_000, "ann")) == f"NAME: '{'x' * 64}...' is not known; known are ann"
