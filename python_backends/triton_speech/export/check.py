"""Holds an exported graph against what the stages run: other batches and lengths than it was traced with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..families.onnx_session import OnnxSession
from ..families.portable import Port, PortableGraph

LIMIT = 1e-4
"""Largest difference of two values that passes for rounding."""
_CASES = ((1, 1), (2, 5), (5, 1), (3, 8))


@dataclass(frozen=True)
class Difference:
    """The largest one of an output, for inputs of a batch and a length."""

    graph: str
    output: str
    batch: int
    patches: int
    largest: float

    @property
    def is_equal(self) -> bool:
        """Not so where a value is NaN."""
        return self.largest <= LIMIT


@torch.inference_mode()
def differences(graph: PortableGraph, path: Path) -> list[Difference]:
    """Every output of every case, ONNX Runtime on the CPU against ``graph.torch``.

    Raises:
        ModuleNotFoundError: ONNX Runtime is not installed.
    """
    session = OnnxSession(path)
    found = []
    for seed, (batch, patches) in enumerate(_CASES if graph.has_length else [(case[0], 1) for case in _CASES]):
        inputs = graph.draw(batch, patches, seed + 1)
        expected = [tensor.contiguous() for tensor in graph.torch(*inputs)]
        outputs = [torch.full_like(tensor, math.nan) for tensor in expected]
        session.run(_named(graph.inputs, inputs), _named(graph.outputs, outputs))
        for port, ours, theirs in zip(graph.outputs, outputs, expected, strict=True):
            largest = float((ours - theirs).abs().max())
            found.append(Difference(graph.name, port.name, batch, patches, largest))
    return found


def report(found: list[Difference]) -> str:
    """A table, a line an output and case."""
    lines = ["| graph | output | batch | patches | largest difference |", "|---|---|---|---|---|"]
    for one in found:
        lines.append(f"| {one.graph} | {one.output} | {one.batch} | {one.patches} | {one.largest:.1e} |")
    return "\n".join(lines)


def _named(ports: Sequence[Port], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {port.name: tensor for port, tensor in zip(ports, tensors, strict=True)}
