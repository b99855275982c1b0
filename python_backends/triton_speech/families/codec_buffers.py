"""A batch's way between host and device: its inputs in one copy, its samples in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Packed(NamedTuple):
    """Views of one buffer: slots (B,) int64 and patches (B, T, P, D) fp32."""

    slots: Tensor
    patches: Tensor


@dataclass(frozen=True)
class Packing:
    """How slots and patches of shape (P, D) = ``patch_shape`` lie in one buffer of bytes."""

    patch_shape: tuple[int, int]

    def bytes(self, batch: int, patches: int) -> int:
        return _start(batch) + 4 * batch * patches * self.patch_shape[0] * self.patch_shape[1]

    def open(self, buffer: Tensor, batch: int, patches: int) -> Packed:
        slots = buffer[: 8 * batch].view(torch.int64)
        values = buffer[_start(batch) : self.bytes(batch, patches)].view(torch.float32)
        return Packed(slots, values.view(batch, patches, *self.patch_shape))


def _start(batch: int) -> int:
    """Where the patches begin: kernels are at their best where tensors begin at multiples of 16 bytes."""
    return 8 * batch + -8 * batch % 16


class Lane:
    """Host memory for one batch on its way; page-locked where the device is a GPU, so that copies run beside work."""

    def __init__(self, device: torch.device) -> None:
        self._pin = device.type == "cuda"
        self._inputs = torch.empty(0, dtype=torch.uint8)
        self._audio = torch.empty(0)
        self.batch: AudioBatch | None = None

    def pack(
        self, packing: Packing, shape: tuple[int, int], patches: Tensor, slots: Sequence[int], spare: int
    ) -> Tensor:
        """Bytes of a batch padded to ``shape``; the padding's rows are zero and have the slot ``spare``."""
        needed = packing.bytes(*shape)
        if len(self._inputs) < needed:
            self._inputs = torch.empty(needed, dtype=torch.uint8, pin_memory=self._pin)
        packed = packing.open(self._inputs, *shape)
        rows = len(slots)
        packed.slots[:rows] = torch.tensor(slots)
        packed.slots[rows:] = spare
        packed.patches[:rows] = patches
        packed.patches[rows:] = 0
        return self._inputs[:needed]

    def collect(self, audio: Tensor) -> AudioBatch:
        """Begins to copy audio (B, N) to the host; its place on the device may be overwritten by later work there."""
        if len(self._audio) < audio.numel():
            self._audio = torch.empty(audio.numel(), pin_memory=self._pin)
        host = self._audio[: audio.numel()].view(audio.shape)
        host.copy_(audio, non_blocking=True)
        event = torch.cuda.current_stream(audio.device).record_event() if self._pin else None
        self.batch = AudioBatch(host, event)
        return self.batch


class AudioBatch:
    """Samples on their way to the host."""

    def __init__(self, host: Tensor, event: torch.cuda.Event | None) -> None:
        self._host, self._event = host, event
        self._samples: Tensor | None = None

    def result(self) -> Tensor:
        """Waits for the samples (B, N) fp32; they own their storage."""
        if self._samples is None:
            if self._event is not None:
                self._event.synchronize()
            self._samples = self._host.clone()
        return self._samples
