"""Text to the token ids that Qwen3-TTS was trained on: byte-level BPE from ``vocab.json`` and ``merges.txt``."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Vocabulary

from .config import Qwen3TTSConfig

VOCABULARY, MERGES = "vocab.json", "merges.txt"
# How Qwen's vocabulary divides a text before its merges (its published pre-tokeniser).
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokenizer:
    """Knows no control tokens: "<|im_end|>" in a caller's text is read as the characters it consists of.

    Controls are placed by id, from the configuration. Calls are thread-safe.
    """

    def __init__(self, vocabulary: Vocabulary, config: Qwen3TTSConfig) -> None:
        """
        Raises:
            ValueError: an id does not fit the configuration.
        """
        if (size := vocabulary.get_vocab_size()) > config.talker_config.text_vocab_size:
            raise ValueError(
                f"{VOCABULARY} has {size} tokens, text_vocab_size is {config.talker_config.text_vocab_size}"
            )
        model = vocabulary.model
        if hasattr(model, "_resize_cache"):
            # Pieces of all texts would be remembered, up to ten thousand.
            model._resize_cache(0)
        self._vocabulary = vocabulary
        self._start, self._end = config.im_start_token_id, config.im_end_token_id
        if (assistant := self.encode("assistant")) != [config.assistant_token_id]:
            raise ValueError(f"assistant_token_id is {config.assistant_token_id}, {VOCABULARY} makes it {assistant}")
        self.role = (self._start, config.assistant_token_id, *self.encode("\n"))
        """What begins an answer."""

    @classmethod
    def from_checkpoint(cls, folder: Path, config: Qwen3TTSConfig) -> Tokenizer:
        """Reads ``vocab.json`` and ``merges.txt``.

        Raises:
            FileNotFoundError: one of them is missing.
            ValueError: they are not a usable vocabulary.
        """
        for name in (VOCABULARY, MERGES):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"checkpoint {folder.name!r} has no {name}")
        try:
            model = models.BPE.from_file(str(folder / VOCABULARY), str(folder / MERGES))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"the vocabulary of checkpoint {folder.name!r} is not readable: {error}") from error
        return cls(byte_level(model), config)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``; never one of a control."""
        return self._vocabulary.encode(text, add_special_tokens=False).ids

    def instruction(self, text: str) -> list[int]:
        """An instruction as the model hears it: a user's turn."""
        return [self._start, *self.encode(f"user\n{text}"), self._end, *self.encode("\n")]


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
    vocabulary.decoder = decoders.ByteLevel()
    return vocabulary
