"""What the engines and the stages expect of a family. A family satisfies it by shape, not by inheritance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from .facts import KVShape

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
