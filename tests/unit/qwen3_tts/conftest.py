"""Tiny checkpoints, one of each kind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_speech.families.qwen3_tts.tiny import write_tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the tiny checkpoint of a kind, once."""
    root = tmp_path_factory.mktemp("tiny")

    def get(kind: str) -> Path:
        known: Any = kind
        return root / kind if (root / kind).is_dir() else write_tiny_checkpoint(root / kind, kind=known, head_dim=16)

    return get


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
