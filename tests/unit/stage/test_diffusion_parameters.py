"""The diffusion stage's parameters are refused by name, with what is allowed."""

from __future__ import annotations

import json

import pytest

from triton_speech.stage.diffusion_parameters import DiffusionParameters


def read(**parameters: str) -> DiffusionParameters:
    given = {name: {"string_value": value} for name, value in parameters.items()}
    return DiffusionParameters.from_triton(json.dumps({"parameters": given}))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"runtime": "tensorflow"}, "parameter runtime is 'tensorflow': .*'torch' or 'onnxruntime'"),
        ({"runtime": "onnxruntime", "dtype": "bfloat16"}, "parameter dtype is 'bfloat16'; with runtime 'onnxruntime'"),
        ({"max_inference_steps": "1"}, "parameter max_inference_steps is '1': .*greater than or equal to 2"),
        ({"max_inference_steps": "101"}, "parameter max_inference_steps is '101': .*less than or equal to 100"),
        ({"cfg_cutoff_ratio": "0"}, "parameter cfg_cutoff_ratio is '0': .*greater than 0"),
        ({"deterministic_rows": "0"}, "parameter deterministic_rows is '0'"),
        ({"seeds": "1"}, "parameter seeds is not known; known are .*runtime"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(**given)


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_onnx_runtime_takes_the_types_that_its_graphs_have(dtype: str) -> None:
    assert read(runtime="onnxruntime", dtype=dtype).runtime == "onnxruntime"
