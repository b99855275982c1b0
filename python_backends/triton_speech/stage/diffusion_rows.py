"""What a request to the diffusion stage holds: rows, each of which could be another stream's, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ..errors import echoed, invalid
from ..families.protocol import Sampling
from ..request import NumberField
from .triton import read_text

POSITION = NumberField("POSITION", 0, 2**31 - 1, 0, integer=True)
STEPS, MIN_STEPS = "INFERENCE_STEPS", 2
FLOATS = ("MU", "COND")


@dataclass(frozen=True)
class Limits:
    """What rows must be like.

    Attributes:
        mu_size, patch_shape: of the model.
        sampling: inputs that the family adds, one number a row.
        make_sampling: the family's; it checks these numbers.
        max_steps: diffusion steps that a row may ask for.
    """

    mu_size: int
    patch_shape: tuple[int, int]
    sampling: Sequence[str]
    make_sampling: Callable[[int, Mapping[str, Any]], Sampling]
    max_steps: int


@dataclass(frozen=True)
class DiffusionRows:
    """The rows of a request, or of several.

    Attributes:
        inputs: (B, ...) by the names of the inputs; MU and COND as floats, numbers (B, 1) int64 or fp32.
        keys: ``Sampling.batch_key`` of each row.
    """

    inputs: Mapping[str, Tensor]
    keys: Sequence[Any]

    def groups(self) -> dict[Any, list[int]]:
        """Rows that are solved together, by their key."""
        found: dict[Any, list[int]] = {}
        for row, key in enumerate(self.keys):
            found.setdefault(key, []).append(row)
        return found

    def pick(self, rows: list[int]) -> Mapping[str, Tensor]:
        """Inputs of these rows."""
        if rows == list(range(len(self.keys))):
            return self.inputs
        return {name: values[rows] for name, values in self.inputs.items()}


def join(requests: Sequence[DiffusionRows]) -> DiffusionRows:
    """The rows of all requests, one after the other."""
    if len(requests) == 1:
        return requests[0]
    inputs = {name: torch.cat([one.inputs[name] for one in requests]) for name in requests[0].inputs}
    return DiffusionRows(inputs, [key for one in requests for key in one.keys])


def read_rows(request: Any, limits: Limits) -> DiffusionRows | None:
    """None for a ping.

    Raises:
        SpeechError: INVALID_ARG, naming the input that is wrong, its value and what is allowed.
    """
    tensors = {tensor.name(): tensor for tensor in request.inputs()}
    if "CONTROL" in tensors:
        command = read_text({"CONTROL": tensors["CONTROL"].as_numpy()}, "CONTROL")
        if command != "ping":
            raise invalid("CONTROL", f"{echoed(command)} is not allowed, only 'ping' is")
        return None
    names = (*FLOATS, "SEED", "POSITION", *limits.sampling)
    for name in names:
        if name not in tensors:
            raise invalid(name, "is missing")
    inputs = {name: _read(name, tensors[name]) for name in names}
    count = len(inputs["MU"])
    shapes = {"MU": (limits.mu_size,), "COND": limits.patch_shape}
    for name, values in inputs.items():
        _check_shape(name, values, (count, *shapes.get(name, (1,))))
    for name in FLOATS:
        _check_finite(name, inputs[name])
    columns = {name: inputs[name].squeeze(1).tolist() for name in names[len(FLOATS) :]}
    keys = [_check_numbers({name: column[row] for name, column in columns.items()}, limits) for row in range(count)]
    return DiffusionRows(inputs, keys)


def _read(name: str, tensor: Any) -> Tensor:
    """A copy as fp32 or int64. Through DLPack, for NumPy knows no bfloat16.

    Triton's own memory may begin anywhere, and products of what is not aligned may differ in their last bits.
    """
    if name == "SEED":
        return torch.from_numpy(tensor.as_numpy().view("int64")).clone()
    values: Tensor = from_dlpack(tensor)
    return values.to(torch.float32 if values.is_floating_point() else torch.int64, copy=True)


def _check_shape(name: str, values: Tensor, wanted: tuple[int, ...]) -> None:
    if tuple(values.shape) != wanted:
        raise invalid(name, f"has shape {list(values.shape)}, must be {list(wanted)}")


def _check_finite(name: str, values: Tensor) -> None:
    flat = values.flatten(1)
    wrong = (~flat.isfinite()).nonzero()
    if len(wrong):
        row, at = wrong[0].tolist()
        raise invalid(name, f"row {row} holds {flat[row, at].item()}, allowed are finite numbers")


def _check_numbers(numbers: Mapping[str, float], limits: Limits) -> Any:
    """The ``Sampling.batch_key`` of a row."""
    POSITION.check(numbers["POSITION"])
    if STEPS in numbers:
        NumberField(STEPS, MIN_STEPS, limits.max_steps, limits.max_steps, integer=True).check(numbers[STEPS])
    sampling = limits.make_sampling(int(numbers["SEED"]), {name: numbers[name] for name in limits.sampling})
    return sampling.batch_key
