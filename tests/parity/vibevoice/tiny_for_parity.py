"""The tiny checkpoints that upstream is asked about. Run as a script it writes them: ``tiny_for_parity.py FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "tied": {"seed": 7},
    # As in the large model, the head has weights of its own; all queries share one pair of keys and values.
    "untied": {
        "seed": 8,
        "tie_word_embeddings": False,
        "decoder_config": {"num_key_value_heads": 1, "num_hidden_layers": 3, "tie_word_embeddings": False},
        "diffusion_head_config": {"head_layers": 3},
        "acoustic_tokenizer_config": {"decoder_depths": "2-1-1-1-1-1-1"},
    },
    # Speech ends, begins anew, and is over by chance.
    "by_chance": {"seed": 45, "stops_at_once": None, "tie_word_embeddings": False},
    "stops_at_some_time": {"seed": 17, "stops_at_once": None, "tie_word_embeddings": False},
}


def write(folder: Path, name: str) -> Path:
    return write_tiny_checkpoint(folder / name, **CHECKPOINTS[name])


if __name__ == "__main__":
    for checkpoint in CHECKPOINTS:
        write(Path(sys.argv[1]), checkpoint)
