from __future__ import annotations

import os
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
