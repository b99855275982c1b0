"""An engine of an exported graph, where TensorRT is installed. It fits the GPU and the release that built it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..families.portable import PortableGraph
from .triton_config import tensorrt_config

_INSTALL = "pip install tensorrt, of the release that the Triton container carries, on a host with its GPU"


class TensorRTError(ValueError):
    """There is no TensorRT here, or it could not build; says what is missing."""


def tensorrt() -> Any:
    """The module.

    Raises:
        TensorRTError: it is not installed, or cannot work here.
    """
    try:
        import tensorrt
    except ImportError as error:
        raise TensorRTError(f"--tensorrt needs TensorRT, which is not installed: {_INSTALL}") from error
    except OSError as error:
        raise TensorRTError(f"--tensorrt needs TensorRT, which lacks a library ({error}): {_INSTALL}") from error
    return tensorrt


def build_engine(graph: PortableGraph, onnx: Path, folder: Path) -> Path:
    """Builds ``1/model.plan`` in ``folder`` of the graph in the file ``onnx``, in fp32, with a ``config.pbtxt``.

    It takes batches from 1 to ``graph.max_batch``, lengths from 1 to ``graph.max_patches``; an eighth of both is best.

    Raises:
        TensorRTError: it cannot; TensorRT's own log says more.
    """
    trt = tensorrt()
    logger = trt.Logger(trt.Logger.WARNING)
    try:
        builder = trt.Builder(logger)
    except Exception as error:  # its binding tells nothing but that it got none
        raise TensorRTError("TensorRT is installed but cannot start: it needs an NVIDIA GPU and its driver") from error
    # Newer releases do not have the flag: it is always so.
    explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx)):
        problems = "; ".join(str(parser.get_error(at)) for at in range(parser.num_errors))
        raise TensorRTError(f"TensorRT does not read {graph.name}: {problems}")
    config = builder.create_builder_config()
    # By itself TensorRT multiplies with 10-bit fractions, and would not be equal.
    config.clear_flag(trt.BuilderFlag.TF32)
    config.add_optimization_profile(_profile(builder, graph))
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise TensorRTError(f"TensorRT could not build {graph.name}; its log above says why")
    path = folder / "1" / "model.plan"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(plan))
    (folder / "config.pbtxt").write_text(tensorrt_config(graph, folder.name), encoding="utf-8")
    return path


def _profile(builder: Any, graph: PortableGraph) -> Any:
    profile = builder.create_optimization_profile()
    often = (max(1, graph.max_batch // 8), max(1, graph.max_patches // 8))
    for port in graph.inputs:
        smallest, usual, largest = (
            graph.shape(port, batch, patches)
            for batch, patches in ((1, 1), often, (graph.max_batch, graph.max_patches))
        )
        profile.set_shape(port.name, smallest, usual, largest)
    return profile
