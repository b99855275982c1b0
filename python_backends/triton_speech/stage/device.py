"""Where a stage computes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..parameters import DeviceParameters


def choose_device(parameters: DeviceParameters, args: Mapping[str, str]) -> str:
    """The torch device of an instance, with torch's thread count set.

    Raises:
        ValueError: a GPU is asked for and there is none.
    """
    if parameters.threads:
        torch.set_num_threads(parameters.threads)
    wanted = parameters.device
    if wanted == "auto":
        on_gpu = args.get("model_instance_kind") == "GPU" and torch.cuda.is_available()
        wanted = f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu"
    elif wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"parameter device is {wanted!r}, but torch finds no GPU")
    if wanted == "cuda":
        wanted = "cuda:0"
    use_device(wanted)
    return wanted


def use_device(device: str) -> None:
    """Makes a device the calling thread's own. Kernels are launched on that one, wherever their tensors lie."""
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
