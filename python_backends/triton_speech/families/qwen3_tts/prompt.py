"""Lays text, voice and reference audio out in the order the model was trained on.

Each position carries a text token and something of the audio side (a control, the speaker's vector, a frame of the
reference), whose embeddings are added; one of the two may be missing. Text that does not find room in the prompt
trails: the rows of the frames that are made take it, one token each, and padding afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .config import Qwen3TTSConfig

NOTHING = -1
SPEAKER = -2
"""In place of a control: the speaker's vector."""
REFERENCE = -3
"""In place of a control: the next frame of the reference."""
ROLE_TOKENS = 3
_HEADER = 6


@dataclass(frozen=True)
class Words:
    """The text side of a prompt, as the frontend makes it.

    Attributes:
        role: the three tokens that begin an answer.
        text: what is to be spoken; at least one token.
        reference_text: transcript of the reference frames, or None.
        instruction: tokens of the whole instruction with its frame; may be none.
        language: its control, None where the model shall find out.
        speaker: the control of a built-in speaker, or None.
        non_streaming: all text stands before the first frame; otherwise it is heard as the speech is made.
        vector_size: of the speaker's vectors that the checkpoint takes.
    """

    role: tuple[int, ...]
    text: tuple[int, ...]
    reference_text: tuple[int, ...] | None = None
    instruction: tuple[int, ...] = ()
    language: int | None = None
    speaker: int | None = None
    non_streaming: bool = False
    vector_size: int = 0

    def __post_init__(self) -> None:
        if len(self.role) != ROLE_TOKENS:
            raise ValueError(f"role has {len(self.role)} tokens, must have {ROLE_TOKENS}")
        if not self.text:
            raise ValueError("text has no tokens, must have at least 1")

    def pack(self) -> list[int]:
        """One list of integers, none of them negative, for the way between stages."""
        reference = () if self.reference_text is None else self.reference_text
        # What may be absent is counted from 1.
        header = [
            0 if self.language is None else self.language + 1,
            0 if self.speaker is None else self.speaker + 1,
            int(self.non_streaming),
            len(self.instruction),
            0 if self.reference_text is None else len(reference) + 1,
            self.vector_size,
        ]
        return [*header, *self.role, *self.instruction, *reference, *self.text]

    @classmethod
    def unpack(cls, packed: Sequence[int]) -> Words:
        """What ``pack`` was given.

        Raises:
            ValueError: the list was not made by ``pack``.
        """
        if len(packed) < _HEADER:
            raise ValueError(f"a packed prompt has {len(packed)} integers, must have at least {_HEADER}")
        language, speaker, non_streaming, instruction, reference, vector_size = packed[:_HEADER]
        rest = list(packed[_HEADER:])

        def take(count: int) -> tuple[int, ...]:
            taken = tuple(rest[:count])
            del rest[:count]
            return taken

        return cls(
            role=take(ROLE_TOKENS),
            instruction=take(instruction),
            reference_text=take(reference - 1) if reference else None,
            text=tuple(rest),
            language=language - 1 if language else None,
            speaker=speaker - 1 if speaker else None,
            non_streaming=bool(non_streaming),
            vector_size=vector_size,
        )


@dataclass(frozen=True)
class Prompt:
    """What a stream starts from.

    Attributes:
        words: the text side.
        speaker_vector: (H,) of a recorded voice, or None.
        reference_codes: (T, G) int64 frames of the recording that ``words.reference_text`` transcribes, or None.
    """

    words: Words
    speaker_vector: Tensor | None = None
    reference_codes: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.reference_codes is None) != (self.words.reference_text is None):
            raise ValueError("reference codes and their text need each other; one of them is missing")

    @property
    def length(self) -> int:
        words = self.words
        voice = self.speaker_vector is not None or words.speaker is not None
        tags = (3 if words.language is None else 4) + voice + 1
        head = len(words.instruction) + ROLE_TOKENS + tags
        if self.reference_codes is None:
            return head + (len(words.text) + 2 if words.non_streaming else 1)
        spoken = len(words.reference_text or ()) + len(words.text) + 1
        return head + len(self.reference_codes) + 1 + (spoken if words.non_streaming else 0)


@dataclass(frozen=True)
class Layout:
    """Rows of a prompt.

    Attributes:
        text: text token of each row, or NOTHING.
        audio: control of each row, or NOTHING, SPEAKER, REFERENCE.
        trailing: text tokens of the rows after the prompt; padding follows them.
    """

    text: list[int]
    audio: list[int]
    trailing: list[int]


def lay_out(prompt: Prompt, config: Qwen3TTSConfig) -> Layout:
    """The rows of a prompt; ``prompt.length`` of them."""
    talker, words = config.talker_config, prompt.words
    pad, begin, end = config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id
    rows = [(token, NOTHING) for token in (*words.instruction, *words.role)]
    if words.language is None:
        tags = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
    else:
        tags = [talker.codec_think_id, talker.codec_think_bos_id, words.language, talker.codec_think_eos_id]
    if prompt.speaker_vector is not None:
        tags.append(SPEAKER)
    elif words.speaker is not None:
        tags.append(words.speaker)
    rows += [(pad, tag) for tag in tags]
    rows.append((begin, talker.codec_pad_id))

    spoken = [*(words.reference_text or ()), *words.text, end]
    frames = 0 if prompt.reference_codes is None else len(prompt.reference_codes)
    heard = [talker.codec_bos_id, *[REFERENCE] * frames]
    if words.non_streaming:
        rows += [(token, talker.codec_pad_id) for token in spoken]
        rows += [(pad, audio) for audio in heard]
        trailing: list[int] = []
    else:
        # Text and audio side by side; whichever is shorter in the prompt is filled up or trails.
        rows += list(zip([*spoken, *[pad] * len(heard)], heard, strict=False))
        trailing = spoken[len(heard) :]
    text, audio = zip(*rows, strict=True)
    return Layout(list(text), list(audio), trailing)
