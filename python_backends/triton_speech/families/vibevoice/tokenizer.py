"""Text to the token ids of Qwen2.5, which VibeVoice speaks from: byte-level BPE from ``vocab.json`` and ``merges.txt``.

VibeVoice's own checkpoints hold no vocabulary: the files of Qwen2.5 are put beside them. Its tokens for pictures mark
speech here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Vocabulary

VOCABULARY, MERGES, SETTINGS = "vocab.json", "merges.txt", "tokenizer_config.json"
# How Qwen's vocabulary divides a text before its merges (its published pre-tokeniser).
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Controls:
    """Ids of the only tokens that the model says: speech begins, ends, has a frame here, and all is over."""

    start: int
    end: int
    frame: int
    over: int


NAMES = {"start": "<|vision_start|>", "end": "<|vision_end|>", "frame": "<|vision_pad|>", "over": "<|endoftext|>"}


class Tokenizer:
    """Knows no control tokens: "<|vision_end|>" in a caller's text is read as the characters it consists of.

    Calls are thread-safe.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        model = vocabulary.model
        if hasattr(model, "_resize_cache"):
            # Pieces of all texts would be remembered, up to ten thousand.
            model._resize_cache(0)
        self._vocabulary = vocabulary

    @classmethod
    def from_checkpoint(cls, folder: Path, vocab_size: int) -> Tokenizer:
        """Reads ``vocab.json`` and ``merges.txt``.

        Raises:
            FileNotFoundError: one of them is missing.
            ValueError: they are not a usable vocabulary, or a larger one than the model's.
        """
        for name in (VOCABULARY, MERGES):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"checkpoint {folder.name!r} has no {name}; put that of its Qwen2.5 language model there"
                )
        try:
            model = models.BPE.from_file(str(folder / VOCABULARY), str(folder / MERGES))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"the vocabulary of checkpoint {folder.name!r} is not readable: {error}") from error
        vocabulary = byte_level(model)
        if (size := vocabulary.get_vocab_size()) > vocab_size:
            raise ValueError(f"{VOCABULARY} has {size} tokens, decoder_config.vocab_size is {vocab_size}")
        return cls(vocabulary)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``; never one of a control."""
        return self._vocabulary.encode(text, add_special_tokens=False).ids


def read_controls(folder: Path, vocab_size: int) -> Controls:
    """The ids that ``tokenizer_config.json`` gives to the controls.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it names one of them not, or with an id that the model has not.
    """
    path = folder / SETTINGS
    if not path.is_file():
        raise FileNotFoundError(
            f"checkpoint {folder.name!r} has no {SETTINGS}; put that of its Qwen2.5 language model there"
        )
    try:
        added = json.loads(path.read_text(encoding="utf-8"))["added_tokens_decoder"]
        known = {entry["content"]: int(index) for index, entry in added.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{SETTINGS} of checkpoint {folder.name!r} is not readable: {error!r}") from error
    for name in NAMES.values():
        if not 0 <= known.get(name, -1) < vocab_size:
            raise ValueError(
                f"{SETTINGS} of checkpoint {folder.name!r} has {name} as {known.get(name)}, "
                f"must be 0 to {vocab_size - 1}"
            )
    return Controls(**{field: known[name] for field, name in NAMES.items()})


def byte_level(model: models.BPE) -> Vocabulary:
    """Qwen's normaliser and pre-tokeniser around a BPE model."""
    vocabulary = Vocabulary(model)
    vocabulary.normalizer = normalizers.NFC()
    vocabulary.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return vocabulary
