"""The tiny checkpoints that upstream is asked about. Run as a script it writes them: ``tiny_for_parity.py FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from triton_speech.families.qwen3_tts.tiny import write_tiny_checkpoint

SEED = 7
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "base": {"kind": "base"},
    # As in the larger model, the code predictor is narrower than the talker.
    "custom_voice": {
        "kind": "custom_voice",
        "talker_config": {
            "code_predictor_config": {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3},
        },
    },
    # Positions in sections instead of interleaved; streams end somewhere.
    "voice_design": {
        "kind": "voice_design",
        "stops_at_once": None,
        "talker_config": {
            "num_attention_heads": 6,
            "rope_scaling": {"interleaved": False, "mrope_section": [2, 3, 3]},
        },
    },
    "stops_at_once": {"kind": "voice_design", "stops_at_once": True},
}


def write(folder: Path, name: str) -> Path:
    return write_tiny_checkpoint(folder / name, seed=SEED, head_dim=16, **CHECKPOINTS[name])


if __name__ == "__main__":
    for checkpoint in CHECKPOINTS:
        write(Path(sys.argv[1]), checkpoint)
