"""Golden tensors of upstream's package, and how far from them we are.

The committed ones are always compared. Where upstream can be run, golden tensors of other configurations are made on
the spot, and every test runs on those too: set ``TRITON_SPEECH_UPSTREAM_PYTHON`` to the interpreter of an environment
made as ``make_goldens.py`` says.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from triton_speech.families.voxcpm2.audio_vae import AudioVAE
from triton_speech.families.voxcpm2.checkpoint import load_audio_vae, load_talker, save_checkpoint
from triton_speech.families.voxcpm2.config import VoxCPM2Config
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

HERE = Path(__file__).parent
DATA = HERE / "data"
UPSTREAM_VARIABLE = "TRITON_SPEECH_UPSTREAM_PYTHON"
UPSTREAM_PACKAGES = ("voxcpm", "transformers", "einops")
UPSTREAM_SECONDS = 240

SMALL = {"lm_config": {"hidden_size": 48, "intermediate_size": 96}, "audio_vae_config": {"decoder_dim": 64}}
VARIANTS: dict[str, dict[str, Any]] = {
    "muP, long rope": {
        "lm_config": {
            "use_mup": True,
            "num_hidden_layers": 3,
            "rope_scaling": {"original_max_position_embeddings": 4096, "short_factor": [1.0] * 8},
        },
        "residual_lm_no_rope": False,
        "residual_lm_num_layers": 2,
    },
    "mean velocity, patches of 4": {
        "dit_config": {"mean_mode": True, "num_layers": 2},
        "patch_size": 4,
        "feat_dim": 12,
        "audio_vae_config": {"latent_dim": 12},
    },
}
# Fields of the AudioVAE that published files leave at their defaults.
VAE_VARIANTS: dict[str, dict[str, Any]] = {
    "rate added, dense": {"cond_type": "add", "depthwise": False},
    "rate concatenated": {"cond_type": "concat", "cond_dim": 8, "cond_out_layer": True},
    "rate unknown": {"sr_bin_boundaries": None},
}

LARGEST: dict[tuple[str, str], tuple[float, float]] = {}
"""(configuration, what was compared) -> the largest relative error seen, and its limit."""


@dataclass(frozen=True)
class Golden:
    """What upstream computed on one checkpoint."""

    name: str
    folder: Path
    tensors: dict[str, Tensor]
    notes: dict[str, Any]

    @property
    def checkpoint(self) -> Path:
        """The checkpoint as upstream saved it."""
        return self.folder / "checkpoint"

    def module(self, name: str, role: str) -> Tensor:
        return self.tensors[f"module/{name}/{role}"]

    def check(self, what: str, ours: Tensor, theirs: Tensor, limit: float, scale: Tensor | None = None) -> None:
        """Fails unless the largest difference is within ``limit`` times the largest value of ``theirs``.

        ``scale`` are the values whose largest counts instead, where ``theirs`` may happen to be next to zero.
        """
        assert ours.shape == theirs.shape, what
        error = ((ours - theirs).abs().max() / (theirs if scale is None else scale).abs().max()).item()
        largest, _ = LARGEST.get((self.name, what), (0.0, limit))
        LARGEST[self.name, what] = max(largest, error), limit
        assert error <= limit, f"{what}: relative error {error:.2e}, limit {limit:.0e}"


def find_upstream() -> str | None:
    """An interpreter that can run upstream's package."""
    if UPSTREAM_VARIABLE in os.environ:
        return os.environ[UPSTREAM_VARIABLE]
    return sys.executable if all(map(importlib.util.find_spec, UPSTREAM_PACKAGES)) else None


def run_upstream(checkpoint: Path, out: Path, *options: str) -> None:
    """Runs ``make_goldens.py``; its complaint is the failure's text."""
    command = [str(find_upstream()), str(HERE / "make_goldens.py"), str(checkpoint), str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=UPSTREAM_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def read_golden(name: str, folder: Path) -> Golden:
    notes = json.loads((folder / "goldens.json").read_text(encoding="utf-8"))
    return Golden(name, folder, load_file(folder / "goldens.safetensors"), notes)


def write_variant(folder: Path, name: str) -> Path:
    """A tiny checkpoint of one of the variants."""
    fields = dict(VARIANTS.get(name, {}))
    for section, values in SMALL.items():
        fields[section] = values | fields.get(section, {})
    write_tiny_checkpoint(folder, seed=3, head_dim=16, **fields)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Upstream reads this field under its training code's name only.
    raw["dit_config"]["dit_mean_mode"] = raw["dit_config"]["mean_mode"]
    raw["audio_vae_config"] |= VAE_VARIANTS.get(name, {})
    config = VoxCPM2Config.model_validate(raw)
    vae = load_audio_vae(folder)
    if name in VAE_VARIANTS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            vae = AudioVAE(config.audio_vae_config)
    save_checkpoint(folder, json.dumps(raw), load_talker(folder, fused=False), vae)
    return folder


@pytest.fixture(scope="session", params=["committed", *([*VARIANTS, *VAE_VARIANTS] if find_upstream() else ())])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    name: str = request.param
    if name == "committed":
        return read_golden(name, DATA)
    out = tmp_path_factory.mktemp("variant")
    run_upstream(write_variant(out / "ours", name), out)
    return read_golden(name, out)


@pytest.fixture(scope="session")
def upstream() -> Callable[..., None]:
    """``run_upstream``, where upstream is at hand."""
    if find_upstream() is None:
        missing = [name for name in UPSTREAM_PACKAGES if importlib.util.find_spec(name) is None]
        pytest.skip(f"upstream cannot be run: {', '.join(missing)} not importable and {UPSTREAM_VARIABLE} not set")
    return run_upstream


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    """Sums are ordered by thread count; with one, measured errors repeat."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not LARGEST or terminalreporter.verbosity < 1:
        return
    terminalreporter.section("parity: largest relative errors")
    for (name, what), (error, limit) in sorted(LARGEST.items()):
        terminalreporter.write_line(f"{name:28} {what:46} {error:.1e}  (limit {limit:.0e})")
