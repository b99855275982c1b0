"""A small byte-level vocabulary built like Qwen's own: every byte, a few merges, and the controls above them."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import pre_tokenizers

from .tokenizer import MERGES, NAMES, SETTINGS, VOCABULARY

PAIRS = ("s p", "e a", "k e", "sp ea", "spea ke", "speake r", "t h", "th e", "Ġ the", "Ġ t", "i n", "Ċ Ċ", "e r", "1 2")
OTHERS = ("<|im_start|>", "<|im_end|>", "<|image_pad|>")


def write_tiny_tokenizer(folder: Path) -> int:
    """Writes ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``.

    Returns:
        How many tokens there are.
    """
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(pair.replace(" ", "") for pair in PAIRS)]
    ids = {token: index for index, token in enumerate(tokens)}
    (folder / VOCABULARY).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    (folder / MERGES).write_text("\n".join(("#version: 0.2", *PAIRS, "")), encoding="utf-8")
    controls = (NAMES["over"], *OTHERS, NAMES["start"], NAMES["end"], NAMES["frame"])
    settings = {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(len(ids) + index): _entry(token) for index, token in enumerate(controls)},
        "additional_special_tokens": list(controls[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": NAMES["over"],
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": NAMES["over"],
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return len(ids) + len(controls)


def _entry(token: str) -> dict[str, str | bool]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": token, **flags, "special": True}
