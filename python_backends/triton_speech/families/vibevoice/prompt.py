"""What a stream starts from: the model's instructions, samples of the voices, and the script. Needs no torch itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import invalid
from .script import MOST_SPEAKERS, Script, Turn
from .tokenizer import Controls, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

# The words that the model was trained with (the ones that upstream's processor sends).
INSTRUCTION = (
    " Transform the text provided by various speakers into speech output, "
    "utilizing the distinct voice of each respective speaker.\n"
)
HEADER = 3
VOICES, TEXT, SPEECH = " Voice input:\n", " Text input:\n", " Speech output:\n"


@dataclass(frozen=True)
class Prompt:
    """Tokens, and features of voice samples.

    Attributes:
        tokens: ids; ``vocabulary + k`` stands for all frames of voice k.
        voices: (frames, D) of each, scaled as the model reads them.
        vocabulary: size of the language model's, or less; tokens above it are no words.
    """

    tokens: tuple[int, ...]
    voices: tuple[Tensor, ...]
    vocabulary: int

    @property
    def length(self) -> int:
        """Positions that the prompt takes."""
        places = [token - self.vocabulary for token in self.tokens if token >= self.vocabulary]
        return len(self.tokens) - len(places) + sum(len(self.voices[place]) for place in places)


@dataclass(frozen=True)
class Words:
    """The text side of a prompt.

    Attributes:
        tokens: as in ``Prompt``, with a place for a voice sample of each speaker.
        section: where the voice samples begin and end; without any voice all of it is left out.
        vocabulary: as in ``Prompt``.
    """

    tokens: tuple[int, ...]
    section: tuple[int, int]
    vocabulary: int

    def pack(self) -> list[int]:
        """As it travels between stages."""
        return [self.vocabulary, *self.section, *self.tokens]

    @classmethod
    def unpack(cls, packed: Sequence[int]) -> Words:
        """Reads what ``pack`` wrote.

        Raises:
            SpeechError: INVALID_ARG where it is something else.
        """
        if len(packed) < HEADER + 1:
            raise invalid("TOKENS", f"has {len(packed)} entries, must have at least {HEADER + 1}")
        vocabulary, first, last, *tokens = packed
        if not 0 <= first <= last < len(tokens):
            raise invalid("TOKENS", f"has voices from {first} to {last} of {len(tokens)} tokens")
        words = cls(tuple(tokens), (first, last), vocabulary)
        if sorted(words.places) != list(range(len(words.places))) or len(words.places) > MOST_SPEAKERS:
            raise invalid("TOKENS", f"has places for voices {words.places}, at most 0 to {MOST_SPEAKERS - 1} once each")
        return words

    @property
    def places(self) -> list[int]:
        """The voices that have a place, in the order of their speakers."""
        return [token - self.vocabulary for token in self.tokens if token >= self.vocabulary]

    def with_voices(self, rows: Tensor | None) -> Prompt:
        """The prompt with samples (n, 1 + D) of voices, the number of its voice first in each row, or without any.

        Raises:
            SpeechError: INVALID_ARG where some speakers have a voice and others have none.
        """
        if rows is None or len(rows) == 0:
            first, last = self.section
            return Prompt(self.tokens[:first] + self.tokens[last:], (), self.vocabulary)
        voices = tuple(rows[rows[:, 0] == voice, 1:] for voice in range(len(self.places)))
        if sum(map(len, voices)) != len(rows) or not all(map(len, voices)):
            present, speakers = len(set(rows[:, 0].tolist())), len(voices)
            raise invalid("VOICE", f"has {present} voices for {speakers} speakers; give {speakers} or none")
        return Prompt(self.tokens, voices, self.vocabulary)


def write_turn(turn: Turn) -> str:
    """As the model reads it."""
    return f" Speaker {turn.speaker}: {turn.text}\n"


def write_words(
    script: Script, chosen: Sequence[int], tokenizer: Tokenizer, controls: Controls, vocabulary: int
) -> Words:
    """The prompt of a script, with a place for a voice sample of each of its speakers.

    Args:
        chosen: the number of each speaker's voice; empty where there are none.
    """
    tokens = tokenizer.encode(INSTRUCTION)
    first = len(tokens)
    tokens += tokenizer.encode(VOICES)
    for speaker, voice in enumerate(chosen or range(len(script.numbers))):
        tokens += tokenizer.encode(f" Speaker {speaker}:")
        tokens += [controls.start, vocabulary + voice, controls.end, *tokenizer.encode("\n")]
    last = len(tokens)
    tokens += tokenizer.encode(TEXT)
    for turn in script.turns:
        tokens += tokenizer.encode(write_turn(turn))
    return Words((*tokens, *tokenizer.encode(SPEECH), controls.start), (first, last), vocabulary)
