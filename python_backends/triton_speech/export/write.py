"""From a family's graph to a folder of a Triton repository."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..families.onnx_session import GRAPH_FILE, SOURCE
from ..families.portable import PortableGraph
from .triton_config import onnx_config

OPSET = 18
"""Known to the ONNX Runtime and the TensorRT of every Triton container since 2023."""
EXTERNAL_BYTES = 256 << 20
"""Weights of more than this go into a file beside the graph: what protobuf holds ends at 2 GiB."""
_EXAMPLE = (2, 3)
"""Batch and patches of the traced example; none of both is 1, which would be taken for a constant."""


def write_graph(graph: PortableGraph, folder: Path) -> Path:
    """Writes ``1/model.onnx`` and ``config.pbtxt`` into ``folder``, which must be empty; gives the graph's file.

    Raises:
        ModuleNotFoundError: a package of the extra ``onnx`` is not installed.
    """
    program = _traced(graph)
    program.model.metadata_props[SOURCE] = graph.source
    _forget_where_it_was_traced(program.model)
    path = folder / "1" / GRAPH_FILE
    path.parent.mkdir(parents=True)
    program.save(path, external_data=_weight_bytes(program.model) > EXTERNAL_BYTES)
    (folder / "config.pbtxt").write_text(onnx_config(graph), encoding="utf-8")
    return path


def _traced(graph: PortableGraph) -> Any:
    batch = torch.export.Dim("batch", min=1)
    lengths = {dim: torch.export.Dim(dim, min=1) for port in graph.inputs for dim in port.dims if isinstance(dim, str)}
    free = tuple(
        {0: batch, **{1 + at: lengths[dim] for at, dim in enumerate(port.dims) if isinstance(dim, str)}}
        for port in graph.inputs
    )
    with warnings.catch_warnings(), _quiet("torch.onnx", "onnxscript"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph.module.eval(),
            graph.draw(*_EXAMPLE),
            dynamo=True,
            opset_version=OPSET,
            input_names=[port.name for port in graph.inputs],
            output_names=[port.name for port in graph.outputs],
            dynamic_shapes=free,
            verbose=False,
        )
    assert program is not None
    return program


def _forget_where_it_was_traced(model: Any) -> None:
    """Every node carries the stack of its tracing, with the paths of this machine."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
    for value in model.graph.outputs:
        value.metadata_props.clear()


def _weight_bytes(model: Any) -> int:
    return sum(weight.const_value.nbytes for weight in model.graph.initializers.values())


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Loggers tell errors alone: of operators of packages that are not installed nobody needs to hear."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
