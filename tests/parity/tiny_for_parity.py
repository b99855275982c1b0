"""Writes the tiny checkpoint that parity is measured on; see ``make_goldens.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

SEED = 7
# As small as keeps every part: the whole of it is committed. 48 wide with 4 heads of 16, so no two sizes are equal.
SMALLER: dict[str, Any] = {
    "lm_config": {"hidden_size": 48, "intermediate_size": 96},
    "audio_vae_config": {"encoder_dim": 2, "decoder_dim": 64},
}


def write(folder: Path) -> Path:
    return write_tiny_checkpoint(folder, seed=SEED, head_dim=16, **SMALLER)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
