"""``config.pbtxt`` of an exported graph, for the container's backends ``onnxruntime`` and ``tensorrt``."""

from __future__ import annotations

import torch

from ..families.portable import Port, PortableGraph

_TYPES = {torch.float32: "TYPE_FP32", torch.int32: "TYPE_INT32"}
_DELAY_MICROSECONDS = 500
"""How long a request may wait for company: less than one batch takes."""
_IDLE_MICROSECONDS = 60_000_000
"""A stream that is silent for longer loses its state."""

_ACCELERATOR = """\
# On a GPU TensorRT runs the graph; its engines, built at the first request of a new shape, are kept on disk. In FP16
# it is faster and no longer equal. Without TensorRT remove this section: ONNX Runtime's own CUDA kernels run then.
optimization { execution_accelerators {
  gpu_execution_accelerator: [ {
    name: "tensorrt"
    parameters { key: "precision_mode" value: "FP32" }
    parameters { key: "max_workspace_size_bytes" value: "1073741824" }
    parameters { key: "trt_engine_cache_enable" value: "1" }
    parameters { key: "trt_engine_cache_path" value: "/tmp/triton_speech_engines" }
  } ]
} }
"""


def onnx_config(graph: PortableGraph) -> str:
    """For ``DIR/<name>/config.pbtxt``, with ``1/model.onnx`` beside it."""
    return _config(graph, graph.name, "onnxruntime") + _ACCELERATOR


def tensorrt_config(graph: PortableGraph, name: str) -> str:
    """For an engine, ``1/model.plan``, that was built of the graph."""
    return _config(graph, name, "tensorrt")


def _config(graph: PortableGraph, name: str, backend: str) -> str:
    kept = graph.state or ("", "")
    inputs, outputs = ([port for port in ports if port.name not in kept] for ports in (graph.inputs, graph.outputs))
    return (
        f'name: "{name}"\n'
        f'backend: "{backend}"\n'
        f"max_batch_size: {graph.max_batch}\n"
        f"input [\n{_tensors(inputs)}\n]\n"
        f"output [\n{_tensors(outputs)}\n]\n"
        f"{_stream_batching(graph) if graph.state else _BATCHING}"
    )


_BATCHING = f"dynamic_batching {{ max_queue_delay_microseconds: {_DELAY_MICROSECONDS} }}\n"


def _stream_batching(graph: PortableGraph) -> str:
    """Triton keeps the state of a sequence of requests; sequences share batches."""
    assert graph.state is not None
    before, after = graph.state
    state = next(port for port in graph.inputs if port.name == before)
    shape = f"data_type: {_TYPES[state.dtype]} dims: {_dims(state)}"
    return (
        "# A stream is a sequence (sequence_start, sequence_end). Its state stays here, in silence at first.\n"
        "sequence_batching {\n"
        f"  max_sequence_idle_microseconds: {_IDLE_MICROSECONDS}\n"
        "  oldest {\n"
        f"    max_candidate_sequences: {graph.max_batch}\n"
        f"    max_queue_delay_microseconds: {_DELAY_MICROSECONDS}\n"
        "  }\n"
        "  state [ {\n"
        f'    input_name: "{before}" output_name: "{after}" {shape}\n'
        f'    initial_state {{ name: "silence" {shape} zero_data: true }}\n'
        "  } ]\n"
        "}\n"
    )


def _tensors(ports: list[Port]) -> str:
    return ",\n".join(
        f'  {{ name: "{port.name}" data_type: {_TYPES[port.dtype]} dims: {_dims(port)} }}' for port in ports
    )


def _dims(port: Port) -> str:
    return f"[ {', '.join('-1' if isinstance(dim, str) else str(dim) for dim in port.dims)} ]"
