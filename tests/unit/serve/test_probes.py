"""What a model is asked, from its configuration alone."""

from __future__ import annotations

from typing import Any

from triton_speech.serve.probes import Probe


def config(*inputs: dict[str, Any]) -> dict[str, Any]:
    return {"name": "model", "input": list(inputs)}


def entry(name: str, dims: list[int], *, optional: bool = False, kind: str = "TYPE_INT32") -> dict[str, Any]:
    return {"name": name, "data_type": kind, "dims": dims, "optional": optional}


def test_a_stage_with_a_control_is_pinged() -> None:
    control = entry("CONTROL", [1], optional=True, kind="TYPE_STRING")
    stream = entry("STREAM_ID", [1], kind="TYPE_STRING")
    assert Probe.of(config(control, stream)).inputs == {"CONTROL": "ping", "STREAM_ID": ""}


def test_optional_inputs_are_left_out_and_the_others_hold_nothing() -> None:
    asked = Probe.of(config(entry("A", [1]), entry("B", [-1, 3]), entry("C", [1], optional=True)))
    assert asked.inputs == {"A": 0, "B": [0, 0, 0]}
