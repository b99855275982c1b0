"""Golden tensors of upstream's package, and how far from them we are."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
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


@pytest.fixture(scope="session")
def goldens() -> Goldens:
    notes = json.loads((HERE / "data/goldens.json").read_text(encoding="utf-8"))
    return Goldens(load_file(HERE / "data/goldens.safetensors"), notes)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the tiny checkpoint of a name, once."""
    root = tmp_path_factory.mktemp("checkpoints")
    spec = importlib.util.spec_from_file_location("tiny_for_qwen3_tts", HERE / "tiny_for_parity.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)

    def get(name: str) -> Path:
        return root / name if (root / name).is_dir() else recipe.write(root, name)

    return get


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not LARGEST or terminalreporter.verbosity < 1:
        return
    terminalreporter.section("parity of Qwen3-TTS: largest relative errors")
    for what, (error, limit) in sorted(LARGEST.items()):
        terminalreporter.write_line(f"{what:60} {error:.1e}  (limit {limit:.0e})")
