"""A small vocabulary built like VoxCPM2's own: the same ids where ids matter, the same normaliser and fallback."""

from __future__ import annotations

import json
import string
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from .tokenizer import AUDIO_START, CONTROL_IDS, WORD_START

SPECIAL = ("<unk>", "<s>", "</s>")
CHAT = ("<|im_end|>", "<|im_start|>")
CONTROL = (
    "<|audio_start|>",
    "<|audio_end|>",
    "<|ref_audio_start|>",
    "<|ref_audio_end|>",
    "<|background|>",
    "<|/background|>",
    "<|characters|>",
    "<|/characters|>",
    "<|speaker_id|>",
    "<|/speaker_id|>",
    "<|span|>",
    "<|/span|>",
)
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + WORD_START + "，。！"
CHINESE = "你好世界今天气"
MERGES = (("你", "好"), ("世", "界"), (WORD_START, "t"), ("h", "e"), (WORD_START + "t", "he"))


def write_tiny_tokenizer(folder: Path) -> int:
    """Writes ``tokenizer.json``, ``tokenizer_config.json`` and ``special_tokens_map.json``.

    ASCII and a few Chinese characters have tokens; all else falls back to its bytes. Two Chinese words are
    merges, as in the real vocabulary, so that splitting them is put to use.

    Returns:
        The vocabulary's size.
    """
    tokenizer = _build()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = tokenizer.get_vocab(with_added_tokens=True)
    special = {ids[token]: token for token in (*SPECIAL, *CONTROL, *CHAT)}
    _write(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": {str(index): _entry(token, special=True) for index, token in special.items()},
            "additional_special_tokens": list(CHAT),
            "bos_token": "<s>",
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "legacy": True,
            "model_max_length": 1_000_000,
            "pad_token": None,
            "tokenizer_class": "LlamaTokenizerFast",
            "unk_token": "<unk>",
        },
    )
    _write(
        folder / "special_tokens_map.json",
        {
            "additional_special_tokens": [_entry(token) for token in CHAT],
            "bos_token": _entry("<s>"),
            "eos_token": _entry("</s>"),
            "unk_token": _entry("<unk>"),
        },
    )
    return tokenizer.get_vocab_size()


def _build() -> Tokenizer:
    tokens = [*SPECIAL, *CHARACTERS]
    if len(tokens) != AUDIO_START or len(CONTROL) != len(CONTROL_IDS):
        raise AssertionError(f"{len(tokens)} tokens in front of the audio markers, {AUDIO_START} are needed")
    tokens += CONTROL
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += CHINESE
    tokens += [left + right for left, right in MERGES]
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=list(MERGES),
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(WORD_START), normalizers.Replace(" ", WORD_START)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(WORD_START, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*SPECIAL, *CHAT)])
    return tokenizer


def _entry(token: str, *, special: bool | None = None) -> dict[str, str | bool]:
    entry: dict[str, str | bool] = {
        "content": token,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
    }
    return entry if special is None else entry | {"special": special}


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
