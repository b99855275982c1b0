"""Typed parameters of a stage, read from its ``config.pbtxt`` once, at load."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

P = TypeVar("P", bound="Parameters")


class Parameters(BaseModel):
    """Base of every stage's parameters: nothing unknown, nothing of the wrong type."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def from_triton(cls: type[P], model_config: str) -> P:
        """Reads the ``parameters`` of the model configuration that Triton hands to ``initialize``.

        Args:
            model_config: ``args["model_config"]``, JSON.

        Raises:
            ValueError: names each parameter that is wrong, its value and what is allowed.
        """
        given = {name: entry["string_value"] for name, entry in json.loads(model_config).get("parameters", {}).items()}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise ValueError("; ".join(cls._explain(e) for e in error.errors())) from error

    @classmethod
    def _explain(cls, error: Any) -> str:
        if not error["loc"]:
            # Two parameters that do not go together; the text names both.
            return str(error["msg"]).removeprefix("Value error, ")
        name = ".".join(map(str, error["loc"]))
        if error["type"] == "extra_forbidden":
            return f"parameter {name} is not known; known are {', '.join(sorted(cls.model_fields))}"
        if error["type"] == "missing":
            return f"parameter {name} is missing"
        return f"parameter {name} is {error['input']!r}: {error['msg']}"


class CheckpointParameters(Parameters):
    """Of every stage that reads a checkpoint."""

    checkpoint: str = Field(default="auto", min_length=1)
    """Name of a folder in the checkpoints folder; ``auto`` takes the only one of the stage's family."""


class DeviceParameters(CheckpointParameters):
    """Of every stage that computes with torch."""

    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """``auto`` takes the GPU that the instance was given, or else the CPU."""
    threads: int = Field(default=0, ge=0)
    """Threads of torch on the CPU; 0 leaves torch's choice."""


class RuntimeParameters(DeviceParameters):
    """Of every stage that can compute with an exported graph in torch's place."""

    runtime: Literal["torch", "onnxruntime"] = "torch"
    """ONNX Runtime computes in fp32 and has no CUDA graphs."""
    onnx_graphs: str = "onnx"
    """Folder that ``triton-speech export --onnx`` wrote; a relative one lies in the checkpoint's folder."""
