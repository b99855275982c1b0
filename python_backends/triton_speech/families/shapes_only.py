"""Modules without weights, to be filled from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules that are built within lie on the meta device, and nothing draws their first weights.

    To draw a normal distribution there torch imports its compiler, which takes a second of every start of a stage.
    """
    with torch.device("meta"), _NothingDrawn():
        yield


def are_shapes_only() -> bool:
    """Whether that is so here: then nothing is computed either. Divisions, powers and norms need the compiler too."""
    return torch.get_default_device().type == "meta"


class _NothingDrawn(TorchFunctionMode):
    """``torch.nn.init`` leaves tensors as they are."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)
