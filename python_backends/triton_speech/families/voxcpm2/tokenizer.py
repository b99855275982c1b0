"""Text to the token ids that VoxCPM2 was trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer as Vocabulary
from tokenizers import models

AUDIO_START = 101
AUDIO_END = 102
REF_AUDIO_START = 103
REF_AUDIO_END = 104

CONTROL_IDS = frozenset(range(101, 113))
"""The audio markers and the span, speaker and background markers: placed by id, never written by a caller."""

WORD_START = "\u2581"


class Tokenizer:
    """Byte-pair encoding in which some tokens are spelled out, character by character.

    Spelled out are Chinese words, which the model has only seen as single characters, and control and special
    tokens, which a caller's text must not be able to utter: "<|audio_start|>" is read as thirteen characters
    of text. (transformers turns it into id 101, for it matches special tokens anywhere in a text.)

    Calls are thread-safe.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """
        Raises:
            ValueError: the vocabulary is not BPE with byte fallback, or lacks the audio markers.
        """
        model = vocabulary.model
        if not isinstance(model, models.BPE) or not model.byte_fallback:
            raise ValueError("tokenizer.json is not a BPE vocabulary with byte fallback")
        self._ids: dict[str, int] = vocabulary.get_vocab(with_added_tokens=True)
        if missing := CONTROL_IDS.difference(self._ids.values()):
            raise ValueError(f"tokenizer.json has no tokens of the ids {sorted(missing)}")
        # To such a vocabulary a whole text is one word: it would remember 10,000 of them, tens of megabytes, which
        # help only who repeats himself. The library's releases before 0.21 cannot be told so.
        if hasattr(model, "_resize_cache"):
            model._resize_cache(0)
        vocabulary.encode_special_tokens = True
        self._vocabulary = vocabulary
        special = set(vocabulary.get_added_tokens_decoder())
        self._spelled = dict(self._spell(special | CONTROL_IDS))

    @classmethod
    def from_checkpoint(cls, folder: Path) -> Tokenizer:
        """Reads ``folder/tokenizer.json``.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is not a usable vocabulary.
        """
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        try:
            vocabulary = Vocabulary.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"tokenizer.json of checkpoint {folder.name!r} is not readable: {error}") from error
        return cls(vocabulary)

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return max(self._ids.values()) + 1

    def token(self, index: int) -> str | None:
        """The token of an id; None where there is none."""
        return self._vocabulary.id_to_token(index)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, without a token for its beginning. Never one of CONTROL_IDS or of the special tokens."""
        ids: list[int] = []
        for token in self._vocabulary.encode(text, add_special_tokens=False).ids:
            ids += self._spelled.get(token, (token,))
        return ids

    def _spell(self, forbidden: set[int] | frozenset[int]) -> Iterator[tuple[int, list[int]]]:
        for token, index in self._ids.items():
            if index in forbidden:
                yield index, self._characters(token)
                continue
            # A word's start mark is dropped with the split, as the model's training did.
            word = token.replace(WORD_START, "")
            if len(word) > 1 and _is_chinese(word) and word in self._ids:
                yield index, self._characters(word)

    def _characters(self, text: str) -> list[int]:
        ids: list[int] = []
        for character in text:
            if character in self._ids:
                ids.append(self._ids[character])
            else:
                ids += [self._ids[f"<0x{byte:02X}>"] for byte in character.encode()]
        return ids


def _is_chinese(text: str) -> bool:
    return all("\u4e00" <= character <= "\u9fff" for character in text)
