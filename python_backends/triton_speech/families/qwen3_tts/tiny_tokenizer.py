"""A small byte-level vocabulary built like Qwen's own: every byte, a few merges, and the controls above them."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import pre_tokenizers

from .tokenizer import MERGES, VOCABULARY

PAIRS = (
    *("a s", "as s", "i s", "ass is", "t a", "n t", "ta nt", "assis tant", "u s", "e r", "us er"),
    *("t h", "th e", "Ġ the", "Ġ t", "Ċ Ċ", "1 2"),
)
"""The first make one token each of "assistant" and "user", as in the real vocabulary."""
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
NAMES = {
    "im_start_token_id": "<|im_start|>",
    "im_end_token_id": "<|im_end|>",
    "tts_pad_token_id": "<tts_pad>",
    "tts_bos_token_id": "<tts_text_bos>",
    "tts_eos_token_id": "<tts_text_eod>",
    "assistant_token_id": "assistant",
}


def write_tiny_tokenizer(folder: Path) -> dict[str, int]:
    """Writes ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``.

    Returns:
        The ids that ``config.json`` names, and ``text_vocab_size``.
    """
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(pair.replace(" ", "") for pair in PAIRS)]
    ids = {token: index for index, token in enumerate(tokens)}
    (folder / VOCABULARY).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    (folder / MERGES).write_text("\n".join(("#version: 0.2", *PAIRS, "")), encoding="utf-8")
    controls = {len(ids) + index: token for index, token in enumerate(CONTROLS)}
    added = {str(index): _entry(token) for index, token in controls.items()}
    settings = {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(CONTROLS[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    known = ids | {token: index for index, token in controls.items()}
    return {field: known[token] for field, token in NAMES.items()} | {"text_vocab_size": len(known)}


def _entry(token: str) -> dict[str, str | bool]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": token, **flags, "special": True}
