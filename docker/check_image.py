"""Ends the build of the GPU image where its packages do not fit each other, which pip was told not to judge."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from importlib.metadata import requires, version


def problems(numpy: str, torch: str, asked_by_vllm: Iterable[str]) -> list[str]:
    """What is wrong with these versions; ``asked_by_vllm`` are requirements in a wheel's words (``torch==2.11.0``)."""
    found = []
    if int(numpy.partition(".")[0]) >= 2:
        found.append(f"numpy is {numpy}, and the Python backend of Triton 2.51 corrupts the tensors of NumPy 2")
    pins = [requirement.partition(";")[0].strip() for requirement in asked_by_vllm]
    pin = next((pin for pin in pins if pin.startswith("torch==")), "torch==")
    # Builds for one CUDA say so after a plus sign.
    if torch.partition("+")[0] != pin.removeprefix("torch=="):
        found.append(f"torch is {torch}, and this vLLM was built for {pin}")
    return found


if __name__ == "__main__":
    for package in ("triton_speech", "triton_speech_client", "vllm"):
        importlib.import_module(package)
    if found := problems(version("numpy"), version("torch"), requires("vllm") or ()):
        sys.exit("\n".join(found))
