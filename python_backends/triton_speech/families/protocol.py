"""What the engines and the stages expect of a family. A family satisfies it by shape, not by inheritance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from .facts import KVShape

SCRATCH_SLOT = 0
"""Of a codec: no stream's, for rows that only pad a batch."""

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Prompt(Protocol):
    @property
    def length(self) -> int:
        """Positions that the prompt takes."""


class Sampling(Protocol):
    @property
    def batch_key(self) -> Any:
        """A batch that is run with a key serves streams with keys up to it; best where all are equal."""


class TalkerModel(Protocol):
    """An autoregressive model over state slots; see ``families/voxcpm2/talker.py`` for the meaning of each part."""

    vocabulary: int
    patch_shape: tuple[int, int]
    length: int
    kv_shape: KVShape
    device: Any
    dtype: Any

    def write_prompts(self, prompts: Sequence[tuple[int, Any, Any]]) -> None: ...

    def hidden(self, slots: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]: ...

    def emit(
        self, slots: Tensor, positions: Tensor, state: Tensor, residual: Tensor, batch_key: Any
    ) -> tuple[Tensor, Tensor]: ...

    def read_patches(self, rows: list[tuple[int, int]]) -> Tensor: ...


class Decoding(Protocol):
    """A batch that is being decoded."""

    def result(self) -> Tensor:
        """Waits for the samples (B, N) fp32, on the CPU; they are the caller's and never written to again."""


class Codec(Protocol):
    """Latent patches to audio, with state slots; used by one thread at a time."""

    patch_shape: tuple[int, int]
    sample_rate: int
    samples_per_patch: int

    def reset(self, slot: int) -> None:
        """A new stream begins in ``slot``; what is running for the old one is not disturbed."""

    def launch(self, patches: Tensor, slots: Sequence[int]) -> Decoding:
        """Begins to decode the next patches (B, T, P, D) fp32 of the streams in ``slots`` (B distinct)."""
