"""From the text of an error response to the error that the caller sees."""

from __future__ import annotations

import pickle

import pytest

from triton_speech_client import (
    DeadlineExceeded,
    InvalidRequest,
    RequestCancelled,
    ServerError,
    ServerUnavailable,
    SpeechClientError,
    VoiceNotFound,
)
from triton_speech_client.errors import error_from_grpc, error_from_text

PREFIXES = [
    "",
    "in ensemble 'voxcpm2_pipeline', ",
    "[request id: a-1] ",
    "[request id: <id_unknown>] in ensemble 'x', ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_field_and_its_problem_are_told_apart_whatever_stands_before(prefix: str) -> None:
    error = error_from_text(f"{prefix}MAX_SECONDS: 500 is out of range, allowed is 0.1 to 120")
    assert isinstance(error, InvalidRequest)
    assert error.field == "MAX_SECONDS"
    assert error.message == "500 is out of range, allowed is 0.1 to 120"
    assert str(error) == "MAX_SECONDS: 500 is out of range, allowed is 0.1 to 120"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_unknown_voice_is_an_error_of_its_own(prefix: str) -> None:
    error = error_from_text(f"{prefix}VOICE: 'bob' is not known; known are anna")
    assert type(error) is VoiceNotFound
    assert error.message == "'bob' is not known; known are anna"


def test_a_bad_voice_name_is_not_a_missing_voice() -> None:
    assert type(error_from_text("VOICE: '../x' does not match [A-Za-z0-9_-]{1,64}")) is InvalidRequest


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("unexpected inference input 'TEMPERATURE' for model 'voxcpm2'", "TEMPERATURE"),
        ("[request id: x] inference input 'SEED' data-type is 'INT32', but model 'm' expects 'UINT64'", "SEED"),
        ("unexpected shape for input 'SEED' for model 'm'. Expected [1], got [2].", "SEED"),
        ("expected number of inputs between 1 and 2 but got 0. missing required input(s) ['TEXT']. Please", "TEXT"),
        ("Request for unknown model: 'nope' is not found", "pipeline"),
        ("unexpected inference output 'AUDIO' for model 'voxcpm2_frontend'", "pipeline"),
    ],
)
def test_tritons_own_checks_name_the_field_too(text: str, field: str) -> None:
    error = error_from_text(text)
    assert isinstance(error, InvalidRequest)
    assert error.field == field


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("the queue is full (64); try again in a moment", ServerUnavailable),
        ("the deadline of 2 s has passed; the stream was ended", DeadlineExceeded),
        ("[request id: 1] Exceeds maximum queue size", ServerUnavailable),
        ("Stub process 'voxcpm2_0' is not healthy.", ServerUnavailable),
        ("Request for unknown model: 'voxcpm2' has no available versions", ServerUnavailable),
        ("in ensemble 'x', the request was cancelled", RequestCancelled),
        ("the talker failed", ServerError),
        ("", ServerError),
    ],
)
def test_other_texts_tell_what_the_caller_can_do(text: str, kind: type[SpeechClientError]) -> None:
    assert type(error_from_text(text)) is kind


def test_a_traceback_is_left_out_of_the_sentence() -> None:
    error = error_from_text("Failed to process the request(s)\n  File 'model.py', line 3, cancelled\nKeyError: 'x'")
    assert type(error) is ServerError
    assert str(error) == "Failed to process the request(s)"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNAVAILABLE", ServerUnavailable),
        ("CANCELLED", RequestCancelled),
        ("DEADLINE_EXCEEDED", DeadlineExceeded),
        ("INTERNAL", ServerError),
        ("RESOURCE_EXHAUSTED", ServerError),
    ],
)
def test_the_status_of_a_failed_call_decides_where_there_is_one(code: str, kind: type[SpeechClientError]) -> None:
    assert type(error_from_grpc(code, "details", "127.0.0.1:8001")) is kind


def test_the_unreachable_server_is_named() -> None:
    assert "127.0.0.1:8001" in str(error_from_grpc("UNAVAILABLE", "refused", "127.0.0.1:8001"))


def test_a_connection_that_ends_while_the_request_is_sent_is_no_fault_of_the_server() -> None:
    error = error_from_grpc("INTERNAL", "Internal error from Core", "127.0.0.1:8001")
    assert type(error) is ServerUnavailable
    assert "127.0.0.1:8001" in str(error)


def test_errors_survive_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(VoiceNotFound("VOICE", "'bob' is not known")))
    assert type(error) is VoiceNotFound
    assert (error.field, error.message) == ("VOICE", "'bob' is not known")
