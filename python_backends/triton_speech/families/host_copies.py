"""Copies between host and device that wait for no step that runs meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopies:
    """Of one device; on the CPU they are plain copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reader = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def upload(self, values: Tensor) -> Tensor:
        """A copy on the device. From pinned memory, for any other copy waits until the device has caught up."""
        if self._reader is None:
            return values.to(self._device)
        return values.pin_memory().to(self._device, non_blocking=True)

    def read(self, buffer: Tensor, rows: list[tuple[int, int]]) -> Tensor:
        """``buffer[slot, position]`` of each row on the host: one gather, one copy.

        The steps that made them must be known to have ended. On a GPU they are read beside the step that runs
        meanwhile, which writes other positions.
        """
        both = torch.tensor(rows, dtype=torch.int64)
        if self._reader is None:
            return buffer[both[:, 0], both[:, 1]]
        with torch.cuda.stream(self._reader):
            both = both.to(self._device)
            return buffer[both[:, 0], both[:, 1]].cpu()
