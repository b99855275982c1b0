from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

torch.set_num_threads(1)

TOY: dict[str, Any] = {
    "texts": {"patterns": 24, "default_speaker_share": 0.5},
    "speech": {"shard": 8, "limit": 2},
    "codec": {"steps": 4, "seconds": 1e6, "batch": 2, "frames": 16, "warm_up": 1},
    "decoder": {"steps": 2, "seconds": 1e6, "batch": 2, "frames": 16, "warm_up": 1},
    "talker": {"steps": 4, "seconds": 1e6, "batch": 2, "length": 256, "warm_up": 1},
}


def write_settings(folder: Path, base: Path, **changes: Any) -> Path:
    """A run of toy size in ``folder``; ``changes`` are merged into its sections."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = {name: {**section, **changes.get(name, {})} for name, section in TOY.items()}
    (folder / "settings.json").write_text(json.dumps({"base": str(base), **sections}), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("base"))
