"""What a family offers for export: graphs whose batch and length are free, and how each is to be served and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

PATCHES = "patches"
"""A dimension that every request chooses for itself. One a graph; outputs may be multiples of it."""

Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]


def normal(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    """Standard normal values."""
    return torch.randn(shape, generator=source)


def uniform(low: float, high: float) -> Draw:
    """Draws evenly from ``low`` to ``high``."""
    return lambda shape, source: low + (high - low) * torch.rand(shape, generator=source)


def integers(low: int, high: int) -> Draw:
    """Draws whole numbers from ``low`` to ``high``, both included."""
    return lambda shape, source: torch.randint(low, high + 1, shape, generator=source, dtype=torch.int32)


@dataclass(frozen=True)
class Port:
    """A tensor of a graph.

    Attributes:
        dims: without the batch, which comes first; a name for one that is free.
        draw: values to check the graph with, of a shape with the batch. For inputs.
    """

    name: str
    dims: tuple[int | str, ...]
    dtype: torch.dtype = torch.float32
    draw: Draw = normal


@dataclass(frozen=True)
class PortableGraph:
    """One graph, its tensors and its meaning.

    Attributes:
        name: of the model in a Triton repository.
        module: what is traced, on the CPU in fp32; takes ``inputs`` in their order.
        torch: what the stages run in its place, as the outputs in their order; the graph is held against this.
        state: input and output that belong together: what one request of a stream leaves to the next, zero at first.
        max_batch, max_patches: what a server shall take in one request.
        source: digest of the tensors and the configuration that the graph was made of.
    """

    name: str
    module: nn.Module
    torch: Callable[..., tuple[Tensor, ...]]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    source: str
    max_batch: int
    max_patches: int = 1
    state: tuple[str, str] | None = None

    def draw(self, batch: int, patches: int, seed: int = 0) -> tuple[Tensor, ...]:
        """Inputs of this batch and length. The same seed gives the same values."""
        source = torch.Generator().manual_seed(seed)
        return tuple(port.draw(self.shape(port, batch, patches), source) for port in self.inputs)

    def shape(self, port: Port, batch: int, patches: int) -> tuple[int, ...]:
        """The shape of an input for this batch and length."""
        return (batch, *(patches if isinstance(dim, str) else dim for dim in port.dims))

    @property
    def has_length(self) -> bool:
        return any(isinstance(dim, str) for port in self.inputs for dim in port.dims)
