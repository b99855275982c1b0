"""A graph in ONNX Runtime, over tensors of torch: on the CPU and on a GPU nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

SOURCE = "triton_speech.source"
"""Key of the metadata that says what a graph was made of."""
GRAPH_FILE = "model.onnx"
_TYPES = {torch.float32: np.float32, torch.int32: np.int32}


def onnxruntime() -> Any:
    """The module.

    Raises:
        ModuleNotFoundError: it is not installed; says what to install.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "ONNX Runtime is not installed: pip install 'triton-speech[onnx]', on a GPU then onnxruntime-gpu in place "
            "of onnxruntime",
            name="onnxruntime",
        ) from error
    return onnxruntime


def graph_path(graphs: Path, name: str) -> Path:
    """Where a graph lies in a Triton repository."""
    return graphs / name / "1" / GRAPH_FILE


class OnnxSession:
    """Runs one graph; by one thread at a time.

    Args:
        path: the graph's file.
        device: as torch names it.
        tf32: on a GPU, multiply fp32 with 10-bit fractions.

    Raises:
        ModuleNotFoundError: ONNX Runtime is not installed.
        ValueError: there is no such file, it is no graph, or this ONNX Runtime has nothing for the device.
    """

    def __init__(self, path: Path, *, device: str = "cpu", tf32: bool = False) -> None:
        runtime = onnxruntime()
        if not path.is_file():
            raise ValueError(f"there is no graph {path}")
        self._device = torch.device(device)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Threads that spin while they wait take the cores of the other stages.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = self._providers(runtime, tf32)
        try:
            self._session = runtime.InferenceSession(path, options, providers=providers)
        except Exception as error:  # the runtime's own kinds, which share no base
            raise ValueError(f"{path} is not a graph that ONNX Runtime can load: {error}") from error
        wanted = providers[0] if isinstance(providers[0], str) else providers[0][0]
        if wanted not in self._session.get_providers():
            # It goes to the CPU without an error where a library of CUDA's is missing.
            raise ValueError(f"ONNX Runtime could not start {wanted}; its own messages say which library is missing")
        self.source = self._session.get_modelmeta().custom_metadata_map.get(SOURCE, "")

    def _providers(self, runtime: Any, tf32: bool) -> list[Any]:
        if self._device.type == "cpu":
            return ["CPUExecutionProvider"]
        if "CUDAExecutionProvider" not in runtime.get_available_providers():
            raise ValueError(
                f"device is {str(self._device)!r}, but the ONNX Runtime that is installed knows no GPU: "
                "pip uninstall onnxruntime, then pip install onnxruntime-gpu; or set device to 'cpu'"
            )
        cuda = {"device_id": str(self._device.index or 0), "use_tf32": str(int(tf32))}
        return [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]

    def width(self, name: str) -> int:
        """The last dimension of an input."""
        return next(int(node.shape[-1]) for node in self._session.get_inputs() if node.name == name)

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Fills the outputs, whose shapes must be the right ones; returns when they are there.

        All on the session's device, contiguous, fp32 or int32.
        """
        binding = self._session.io_binding()
        for name, tensor in inputs.items():
            binding.bind_input(name, *self._place(tensor))
        for name, tensor in outputs.items():
            binding.bind_output(name, *self._place(tensor))
        if self._device.type == "cuda":
            # The runtime has a stream of its own, and waits for nobody else's.
            torch.cuda.current_stream(self._device).synchronize()
        self._session.run_with_iobinding(binding)

    def _place(self, tensor: Tensor) -> tuple[str, int, Any, list[int], int]:
        if tensor.device.type != self._device.type or not tensor.is_contiguous():
            raise ValueError(f"a tensor on {tensor.device} is not contiguous on {self._device}")
        element = _TYPES[tensor.dtype]
        return self._device.type, self._device.index or 0, element, list(tensor.shape), tensor.data_ptr()
