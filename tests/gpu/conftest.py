from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# With TRITON_INTERPRET=1 the Triton language computes on a CPU, for tests of modules that say they can.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("gpu")
            interpreted = INTERPRETED and getattr(item.getparent(pytest.Module).obj, "INTERPRETABLE", False)
            if not torch.cuda.is_available() and not interpreted:
                item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.fixture(scope="module", autouse=True)
def _engines_of_a_module_end_with_it() -> Iterator[None]:
    """With an engine vLLM ends what is global to its process, which must not come after the next one's start."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _engines_of_a_test_end_with_it() -> Iterator[None]:
    yield
    gc.collect()
