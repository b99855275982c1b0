"""Writes a checkpoint with random weights of a published size: all that measuring its speed needs.

    python tests/perf/random_checkpoint.py FAMILY CONFIGS TARGET

CONFIGS is a folder with a published ``config.json`` (and Qwen3-TTS's ``speech_tokenizer/config.json``). It makes noise,
and no stream of it ends by itself. Vocabulary, built-in speakers and what a configuration does not name are those of
the family's tiny checkpoint. The weights are drawn in fp32 first: four bytes of memory for each, some seconds for each
billion of them.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

OF_THE_TOKENIZER = ("assistant_token_id", "im_start_token_id", "im_end_token_id")
"""Ids of the tiny vocabulary, which the published ones are not in; also what begins with ``tts_``."""
CODEC = "speech_tokenizer"


def shared(published: dict[str, Any], tiny: dict[str, Any]) -> dict[str, Any]:
    """Of the published fields those that the tiny checkpoint's configuration has, section by section."""
    kept: dict[str, Any] = {}
    for name, value in published.items():
        if name not in tiny or name in OF_THE_TOKENIZER or name.startswith("tts_"):
            continue
        both = isinstance(value, dict) and isinstance(tiny[name], dict)
        kept[name] = shared(value, tiny[name]) if both else value
    return kept


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def write_random_checkpoint(family: str, configs: Path, target: Path) -> Path:
    """``target``, written with the sizes that ``configs`` names."""
    write = importlib.import_module(f"triton_speech.families.{family}.tiny").write_tiny_checkpoint
    published = read(configs / "config.json")
    how = {"kind": published["tts_model_type"]} if "tts_model_type" in published else {}
    write(target, **how)
    tiny = read(target / "config.json")
    fields = shared(published, tiny)
    if "dtype" in tiny:
        # Where a configuration does not say: what such models are published in.
        fields.setdefault("dtype", "bfloat16")
    if (configs / CODEC).is_dir():
        fields[CODEC] = shared(read(configs / CODEC / "config.json"), read(target / CODEC / "config.json"))
    return write(target, **how, **fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family")
    parser.add_argument("configs", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    written = write_random_checkpoint(args.family, args.configs, args.target)
    size = sum(file.stat().st_size for file in written.rglob("*") if file.is_file())
    print(f"{written}: {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
