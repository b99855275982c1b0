"""A tiny checkpoint, and one thread."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "vibevoice")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
