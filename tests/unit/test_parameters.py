"""A stage's parameters stop it from loading when they are not what they should be."""

from __future__ import annotations

import json

import pytest
from pydantic import Field

from triton_speech.parameters import CheckpointParameters, DeviceParameters, Parameters


class Example(Parameters):
    slots: int = Field(default=8, ge=1)
    deterministic: bool = False
    mode: str


def config(**parameters: str) -> str:
    """The model configuration as Triton hands it to ``initialize``."""
    return json.dumps({"parameters": {name: {"string_value": value} for name, value in parameters.items()}})


def test_strings_become_typed_values_and_absent_ones_defaults() -> None:
    read = Example.from_triton(config(deterministic="true", mode="fast"))
    assert read == Example(slots=8, deterministic=True, mode="fast")


def test_a_configuration_without_parameters_gives_the_defaults() -> None:
    assert CheckpointParameters.from_triton("{}").checkpoint == "auto"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mode": "a", "slotz": "8"}, "parameter slotz is not known; known are deterministic, mode, slots"),
        ({"mode": "a", "slots": "many"}, "parameter slots is 'many': .*integer"),
        ({"mode": "a", "slots": "0"}, "parameter slots is '0': .*greater than or equal to 1"),
        ({"mode": "a", "slots": ""}, "parameter slots is ''"),
        ({"mode": "a", "deterministic": "maybe"}, "parameter deterministic is 'maybe': .*boolean"),
        ({}, "parameter mode is missing"),
    ],
    ids=["unknown", "no_number", "too_small", "empty", "no_boolean", "missing"],
)
def test_a_wrong_parameter_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Example.from_triton(config(**given))


def test_all_wrong_parameters_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"parameter slots is .*; .*parameter mode is missing"):
        Example.from_triton(config(slots="-1"))


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1"])
def test_devices_that_torch_knows(device: str) -> None:
    assert DeviceParameters.from_triton(config(device=device)).device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "CPU", "cpu;"])
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match=f"parameter device is '{device}'"):
        DeviceParameters.from_triton(config(device=device))
