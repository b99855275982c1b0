"""Names and shapes of a checkpoint's tensors, held against what a model expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

_NAMES_SHOWN = 8

Shapes = Mapping[str, tuple[int, ...]]


class CheckpointError(ValueError):
    """A checkpoint that does not fit its own configuration; lists what is missing, surplus or of the wrong shape."""


def shapes_of(model: nn.Module, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """Of all tensors of a model, whose names begin with ``prefix`` in the checkpoint."""
    return {prefix + name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def check_tensors(expected: Shapes, found: Shapes, whose: str) -> None:
    """Compares names and shapes; ``whose`` says whose they are.

    Raises:
        CheckpointError: lists every kind of difference by name.
    """
    wrong = [
        f"{name} is {tuple(found[name])}, must be {tuple(shape)}"
        for name, shape in sorted(expected.items())
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    kinds = {
        "missing": sorted(expected.keys() - found.keys()),
        "surplus": sorted(found.keys() - expected.keys()),
        "wrong shape": wrong,
    }
    problems = [f"{kind}: {_some(names)}" for kind, names in kinds.items() if names]
    if problems:
        raise CheckpointError(f"{whose} does not fit: {'; '.join(problems)}")


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
