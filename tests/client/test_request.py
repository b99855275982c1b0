"""What is sent: names, types and shapes of the inputs, and what is refused before sending."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from triton_speech_client import InvalidRequest, build_inputs
from triton_speech_client.request import build_tensors, requested_outputs
from triton_speech_client.wire import infer_request


def test_only_the_text_is_sent_when_nothing_else_is_given() -> None:
    assert list(build_tensors("Hello.")) == ["TEXT"]


def test_an_option_that_is_none_is_absent_and_an_empty_one_is_sent() -> None:
    tensors = build_tensors("Hello.", voice=None, language="", seed=0)
    assert list(tensors) == ["TEXT", "LANGUAGE", "SEED"]
    assert tensors["LANGUAGE"][0] == b""


def test_every_field_has_the_type_and_shape_of_the_contract() -> None:
    inputs = build_inputs(
        "Grüße",
        voice="anna",
        reference=b"RIFF",
        prompt_audio=b"fLaC",
        prompt_text="said",
        instruction="calm",
        language="de",
        seed=2**64 - 1,
        cfg_value=2,
        inference_steps=10,
        max_seconds=1.5,
        chunk_schedule=[1, 2, 4],
        temperature=0.5,
        top_k=50,
        top_p=0.9,
        repetition_penalty=1.05,
        codes_temperature=0,
        codes_top_k=0,
        codes_top_p=1.0,
    )
    assert [(i.name(), i.datatype(), list(i.shape())) for i in inputs] == [
        ("TEXT", "BYTES", [1]),
        ("VOICE", "BYTES", [1]),
        ("REFERENCE_AUDIO", "BYTES", [1]),
        ("PROMPT_AUDIO", "BYTES", [1]),
        ("PROMPT_TEXT", "BYTES", [1]),
        ("INSTRUCTION", "BYTES", [1]),
        ("LANGUAGE", "BYTES", [1]),
        ("SEED", "UINT64", [1]),
        ("CFG_VALUE", "FP32", [1]),
        ("INFERENCE_STEPS", "INT32", [1]),
        ("MAX_SECONDS", "FP32", [1]),
        ("CHUNK_SCHEDULE", "INT32", [3]),
        ("TEMPERATURE", "FP32", [1]),
        ("TOP_K", "INT32", [1]),
        ("TOP_P", "FP32", [1]),
        ("REPETITION_PENALTY", "FP32", [1]),
        ("CODES_TEMPERATURE", "FP32", [1]),
        ("CODES_TOP_K", "INT32", [1]),
        ("CODES_TOP_P", "FP32", [1]),
    ]


def test_a_dialogue_has_lists_of_voices_and_recordings() -> None:
    samples = (np.zeros(8, np.float32), 16000)
    tensors = build_tensors("x", voice=("b", "a"), reference=[b"RIFF", samples])
    assert tensors["VOICE"].tolist() == [b"b", b"a"]
    assert tensors["REFERENCE_AUDIO"].shape == (2,)
    assert tensors["REFERENCE_AUDIO"][0] == b"RIFF"
    assert build_tensors("x", reference=samples)["REFERENCE_AUDIO"].shape == (1,)
    assert build_tensors("x", voice=["a"])["VOICE"].tolist() == [b"a"]


def test_values_arrive_unchanged_in_the_tensors() -> None:
    tensors = build_tensors("Grüße", seed=2**64 - 1, cfg_value=2, chunk_schedule=np.array([1, 2]).tolist())
    assert tensors["TEXT"][0] == "Grüße".encode()
    assert int(tensors["SEED"][0]) == 2**64 - 1
    assert float(tensors["CFG_VALUE"][0]) == 2.0
    assert tensors["CHUNK_SCHEDULE"].tolist() == [1, 2]


def test_bytes_of_a_recording_keep_their_zeros_at_the_end() -> None:
    recording = b"RIFF\x00\xff\x00\x00"
    request = infer_request("voxcpm2", "Hello.", "", False, reference=recording)
    assert request.raw_input_contents[1] == len(recording).to_bytes(4, "little") + recording


@pytest.mark.parametrize("as_type", [str, Path])
def test_a_path_stands_for_the_bytes_of_its_file(tmp_path: Path, as_type: type) -> None:
    path = tmp_path / "voice.flac"
    path.write_bytes(b"fLaC-bytes")
    assert build_tensors("x", reference=as_type(path))["REFERENCE_AUDIO"][0] == b"fLaC-bytes"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32"])
@pytest.mark.parametrize("shape", [(800,), (800, 2)])
def test_samples_are_wrapped_to_wav_without_loss(dtype: str, shape: tuple[int, ...]) -> None:
    samples = (np.random.default_rng(0).uniform(-1, 1, shape) * (1 if dtype[0] == "f" else 30000)).astype(dtype)
    wav = build_tensors("x", prompt_audio=(samples, 16000))["PROMPT_AUDIO"][0]
    read, sample_rate = soundfile.read(io.BytesIO(wav), dtype=dtype)
    assert sample_rate == 16000
    assert np.array_equal(read, samples)


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({"seed": -1}, "SEED", "not within 0 to"),
        ({"seed": 2**64}, "SEED", "not within 0 to"),
        ({"seed": 1.5}, "SEED", "an integer is needed"),
        ({"seed": True}, "SEED", "an integer is needed"),
        ({"inference_steps": 2**31}, "INFERENCE_STEPS", "not within"),
        ({"cfg_value": "2"}, "CFG_VALUE", "a number is needed"),
        ({"temperature": "0.9"}, "TEMPERATURE", "a number is needed"),
        ({"top_k": 2.5}, "TOP_K", "an integer is needed"),
        ({"codes_top_k": 2**31}, "CODES_TOP_K", "not within"),
        ({"chunk_schedule": 4}, "CHUNK_SCHEDULE", "a list of integers is needed"),
        ({"chunk_schedule": [1, 2.5]}, "CHUNK_SCHEDULE", "an integer is needed"),
        ({"voice": 7}, "VOICE", "a string is needed"),
        ({"voice": ["a", 7]}, "VOICE", "a string is needed"),
        ({"voice": []}, "VOICE", "is an empty list"),
        ({"language": "\ud800"}, "LANGUAGE", "UTF-8"),
        ({"language": ["de"]}, "LANGUAGE", "of type list; a string is needed"),
        ({"reference": []}, "REFERENCE_AUDIO", "is an empty list"),
        ({"reference": [b"a", "no/such/file.wav"]}, "REFERENCE_AUDIO", "No such file"),
        ({"prompt_audio": [b"a"]}, "PROMPT_AUDIO", "of type list"),
        ({"reference": "no/such/file.wav"}, "REFERENCE_AUDIO", "No such file"),
        ({"reference": 7}, "REFERENCE_AUDIO", "a path, bytes or"),
        ({"prompt_audio": (np.zeros(8, np.uint8), 16000)}, "PROMPT_AUDIO", "uint8"),
        ({"prompt_audio": (np.zeros((1, 2, 3), np.float32), 16000)}, "PROMPT_AUDIO", "shape (1, 2, 3)"),
        ({"prompt_audio": (np.zeros(8, np.float32), 0)}, "PROMPT_AUDIO", "sample rate 0"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_fields_name(
    options: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        build_tensors("x", **options)
    assert error.value.field == field
    assert said in error.value.message


@pytest.mark.parametrize("text", [None, b"bytes", 5])
def test_a_text_that_is_no_string_is_refused(text: Any) -> None:
    with pytest.raises(InvalidRequest, match="a string is needed") as error:
        build_tensors(text)
    assert error.value.field == "TEXT"


def test_a_misspelt_option_is_a_type_error_that_lists_the_options() -> None:
    with pytest.raises(TypeError, match=r"unknown option 'sead'; known are voice, .*seed"):
        build_tensors("x", sead=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("pcm16", "samples"), [(False, "AUDIO"), (True, "PCM16")])
def test_only_one_kind_of_samples_is_asked_for(pcm16: bool, samples: str) -> None:
    request = infer_request("voxcpm2", "x", "id-1", pcm16)
    assert [output.name for output in request.outputs] == [samples, "SAMPLE_RATE", "CHUNK_INDEX", "FINISH_REASON"]
    assert tuple(output.name for output in request.outputs) == requested_outputs(pcm16)


def test_the_final_flag_is_always_asked_for() -> None:
    request = infer_request("voxcpm2", "x", "id-1", False)
    assert request.parameters["triton_enable_empty_final_response"].bool_param
    assert (request.model_name, request.id) == ("voxcpm2", "id-1")
    assert "timeout" not in request.parameters


def test_a_deadline_is_told_to_the_server_in_microseconds() -> None:
    request = infer_request("voxcpm2", "x", "", False, 2.5)
    assert request.parameters["timeout"].int64_param == 2_500_000
