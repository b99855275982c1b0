"""The codec's parameters are refused by name, with what is allowed."""

from __future__ import annotations

import json

import pytest
import torch

from triton_speech.families.registry import load_family, optional_part
from triton_speech.stage.codec_parameters import CodecParameters


def read(**parameters: str) -> CodecParameters:
    given = {name: {"string_value": value} for name, value in parameters.items()}
    return CodecParameters.from_triton(json.dumps({"parameters": given}))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"min_batch": "0"}, "parameter min_batch is '0': .*greater than or equal to 1"),
        ({"max_batch": "128", "min_batch": "129"}, r"parameter min_batch is '129': .*must be 1 to max_batch \(128\)"),
        ({"max_batch": "256", "min_batch": "257"}, r"parameter min_batch is '257': .*must be 1 to max_batch \(256\)"),
        ({"deterministic": "true", "min_batch": "2"}, "parameter min_batch is '2': .*must be 1 where deterministic"),
        ({"max_batch": "0"}, "parameter max_batch is '0'"),
        ({"max_wait_ms": "-1"}, "parameter max_wait_ms is '-1': .*greater than or equal to 0"),
        ({"max_wait_ms": "nan"}, "parameter max_wait_ms is 'nan': .*finite"),
        ({"max_wait_ms": "inf"}, "parameter max_wait_ms is 'inf': .*finite"),
        ({"wait_policy": "lazy"}, "parameter wait_policy is 'lazy': .*'fixed' or 'idle_wait'"),
        ({"batches_in_flight": "3"}, "parameter batches_in_flight is '3': .*less than or equal to 2"),
        ({"matmul": "bf16"}, "parameter matmul is 'bf16': .*'fp32' or 'tf32'"),
        ({"max_streams": "0"}, "parameter max_streams is '0'"),
        ({"runtime": "tensorflow"}, "parameter runtime is 'tensorflow': .*'torch' or 'onnxruntime'"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(**given)


def test_a_window_as_large_as_the_batch_is_allowed() -> None:
    window = read(max_batch="128", min_batch="128", max_wait_ms="12.5", wait_policy="idle_wait").window
    assert (window.max_batch, window.min_batch, window.max_wait_ms, window.policy) == (128, 128, 12.5, "idle_wait")


def test_deterministic_decodes_one_patch_at_a_time() -> None:
    assert read(deterministic="true", max_batch="64").window.max_batch == 1


def test_a_family_without_a_codec_for_onnx_runtime_is_named() -> None:
    wanted = "parameter runtime is 'onnxruntime'"
    assert optional_part(load_family("voxcpm2"), "load_onnx_codec", wanted) is not None
    with pytest.raises(ValueError, match=f"{wanted}, which family qwen3_tts has nothing for"):
        optional_part(load_family("qwen3_tts"), "load_onnx_codec", wanted)


def test_tf32_is_for_gpus() -> None:
    with pytest.raises(ValueError, match="parameter matmul is 'tf32', which needs a GPU"):
        read(matmul="tf32").set_matmul_precision("cpu")


@pytest.mark.parametrize(("matmul", "precision"), [("tf32", "high"), ("fp32", "highest")])
def test_matrices_are_multiplied_as_was_asked_for(matmul: str, precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        read(matmul=matmul).set_matmul_precision("cuda:0")
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
