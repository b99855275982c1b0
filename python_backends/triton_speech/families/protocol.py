"""What the engines and the stages expect of a family. A family satisfies it by shape, not by inheritance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from .facts import KVShape
from .graph_use import GraphUse

SCRATCH_SLOT = 0
"""No stream's, for rows that only pad a batch."""

Diffuse = Callable[[Mapping[str, Tensor]], Tensor]
"""Makes a step's patches in another process: rows (B, ...) by the names of the diffusion stage's inputs -> (B, P, D)
fp32. All of it lies on the CPU. Raises SpeechError where that process fails."""

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
    voice_shape: tuple[int, int]
    """Of the rows of a reference or a prompt; mostly those of patches."""
    length: int
    kv_shape: KVShape
    inputs: Tensor
    """(slots, positions, H): what each row reads."""
    device: Any
    dtype: Any
    ends_with_frame: bool
    """Whether the step that ends a stream makes a last frame; otherwise its patch is not to be heard."""
    marks_frames: bool
    """Whether the first value of a patch tells if its step made a frame (1) or none (0), which is then not sent."""
    can_be_captured: bool
    """Whether the torch engine may capture steps as CUDA graphs: they ask nothing of the host. It tells such a talker
    before each step, in ``reach``, a position that all rows lie below."""
    emits_elsewhere: bool
    """Whether ``emit`` asks another process: then only ``hidden``, with states of one shape, is captured."""
    reach: int

    def write_prompts(self, prompts: Sequence[tuple[int, Any, Any]]) -> None: ...

    def hidden(self, slots: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]: ...

    def emit(
        self, slots: Tensor, positions: Tensor, state: Tensor, residual: Tensor, batch_key: Any
    ) -> tuple[Tensor, Tensor]: ...

    def read_patches(self, rows: list[tuple[int, int]]) -> Tensor:
        """What rows (slot, position) read as their patch, fp32 on the CPU: NaN where a step's state was not finite."""


class Diffusion(Protocol):
    """The part of a talker that makes patches, without state, for a stage of its own."""

    patch_shape: tuple[int, int]
    mu_size: int
    """Of what it is told of the language model's state."""
    graph_use: GraphUse

    def warm_up(self) -> None:
        """Solves once, so that the first caller does not pay for torch's start."""

    def solve(self, rows: Mapping[str, Tensor], batch_key: Any) -> Tensor:
        """Rows of streams whose ``Sampling.batch_key`` is this one, by the names of the stage's inputs -> patches
        (B, P, D) fp32. All of it lies on the CPU."""


class Decoding(Protocol):
    """A batch that is being decoded."""

    def result(self) -> Tensor:
        """Waits for the samples (B, N) fp32, on the CPU; they are the caller's and never written to again."""


class Codec(Protocol):
    """Latent patches to audio, with state slots; used by one thread at a time."""

    patch_shape: tuple[int, int]
    sample_rate: int
    samples_per_patch: int
    graph_use: GraphUse

    def reset(self, slot: int) -> None:
        """A new stream begins in ``slot``; what is running for the old one is not disturbed."""

    def launch(self, patches: Tensor, slots: Sequence[int]) -> Decoding:
        """Begins to decode the next patches (B, T, P, D) fp32 of the streams in ``slots`` (B distinct)."""
