"""A graph that takes no time to export."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from triton_speech.families.portable import PATCHES, Port, PortableGraph


class Doubling(nn.Module):
    """The smallest graph: x + weight * x, with a weight of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(4)  # as the codec's layers have theirs: in no list of parameters

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight * x


@pytest.fixture
def doubling() -> PortableGraph:
    return PortableGraph(
        name="doubling",
        module=Doubling(),
        torch=lambda x: (2 * x,),
        inputs=(Port("X", (PATCHES, 4)),),
        outputs=(Port("Y", (PATCHES, 4)),),
        source="none",
        max_batch=4,
    )
