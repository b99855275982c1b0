"""Golden tensors of upstream's package, and how far from them we are."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

HERE = Path(__file__).parent
LARGEST: dict[str, tuple[float, float]] = {}
"""What was compared -> the largest relative error seen, and its limit."""


@dataclass(frozen=True)
class Goldens:
    """What upstream computed."""

    tensors: dict[str, Tensor]
    notes: dict[str, Any]

    def check(self, what: str, ours: Tensor, theirs: Tensor, limit: float) -> None:
        """Fails unless the largest difference is within ``limit`` times the largest value of ``theirs``."""
        assert ours.shape == theirs.shape, what
        error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
        LARGEST[what] = max(LARGEST.get(what, (0.0, limit))[0], error), limit
        assert error <= limit, f"{what}: relative error {error:.2e}, limit {limit:.0e}"

    def audio(self, name: str) -> Tensor:
        """A recording (N,)."""
        return self.tensors[f"audio/{name}"].float() / 2**15


@pytest.fixture(scope="session")
def goldens() -> Goldens:
    notes = json.loads((HERE / "data/goldens.json").read_text(encoding="utf-8"))
    return Goldens(load_file(HERE / "data/goldens.safetensors"), notes)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, goldens: Goldens) -> Callable[[str], Path]:
    """Writes the tiny checkpoint of a name, once."""
    root = tmp_path_factory.mktemp("checkpoints")
    spec = importlib.util.spec_from_file_location("tiny_for_vibevoice", HERE / "tiny_for_parity.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)

    def get(name: str) -> Path:
        if not (root / name).is_dir():
            digest = hashlib.sha256((recipe.write(root, name) / "model.safetensors").read_bytes()).hexdigest()
            assert digest == goldens.notes["digests"][name], "other weights than upstream had; make the goldens anew"
        return root / name

    return get


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not LARGEST or terminalreporter.verbosity < 1:
        return
    terminalreporter.section("parity of VibeVoice: largest relative errors")
    for what, (error, limit) in sorted(LARGEST.items()):
        terminalreporter.write_line(f"{what:60} {error:.1e}  (limit {limit:.0e})")
