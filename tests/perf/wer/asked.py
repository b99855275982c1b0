"""Asks a running server for speech, in each prompt mode, alone or in company."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_speech.families.voxcpm2.training.speakers import SPEAKERS, Speaker, speak_as
from triton_speech.families.voxcpm2.training.teacher import Phonemes, Teacher, tidy
from triton_speech_client.aio_client import AsyncSpeechClient

MODES = ("plain", "reference", "continuation")
RECORDED = "The old clock in the hall is a little slow, but nobody minds. "
"""What every speaker's recording says; its end is where a continuation begins."""


@dataclass(frozen=True)
class Sentence:
    text: str
    category: str


@dataclass(frozen=True)
class Said:
    """One sentence as it came: samples (N,) fp32 at ``rate`` Hz; ``speaker`` counts in SPEAKERS."""

    sentence: Sentence
    samples: NDArray[np.float32]
    rate: int
    finish_reason: str = "stop"
    speaker: int = 0


class Recordings:
    """What the teacher says: the speakers' recordings, and the sentences as a measure."""

    def __init__(self, model: Any) -> None:
        """``model``: path of the teacher's ONNX file."""
        self._phonemes, self._teacher = Phonemes(model), Teacher(model)
        self.of_speakers = [(self._say(RECORDED, speaker), RATE) for speaker in SPEAKERS]

    def say(self, sentences: Sequence[Sentence]) -> list[Said]:
        """The sentences in the teacher's own voice."""
        return [Said(sentence, self._say(sentence.text, SPEAKERS[0]), RATE) for sentence in sentences]

    def _say(self, text: str, speaker: Speaker) -> NDArray[np.float32]:
        spoken = self._teacher.speak(self._phonemes.ids(text), speaker.length_scale)
        return tidy(speak_as(speaker, spoken, self._teacher.sample_rate), RATE)


RATE = 24000


def ask(
    url: str, sentences: Sequence[Sentence], mode: str, streams: int, recordings: Recordings, **options: Any
) -> list[Said]:
    """Every sentence once, ``streams`` at a time; the seed is the sentence's number, so company changes nothing.

    Raises:
        SpeechClientError: a request failed.
    """
    return asyncio.run(_ask(url, sentences, mode, streams, recordings, options))


async def _ask(
    url: str, sentences: Sequence[Sentence], mode: str, streams: int, recordings: Recordings, options: dict[str, Any]
) -> list[Said]:
    gate = asyncio.Semaphore(streams)

    async def one(client: AsyncSpeechClient, number: int, sentence: Sentence) -> Said:
        speaker = number % len(SPEAKERS) if mode != "plain" else 0
        given: dict[str, Any] = {}
        if mode == "reference":
            given = {"reference": recordings.of_speakers[speaker]}
        elif mode == "continuation":
            given = {"prompt_audio": recordings.of_speakers[speaker], "prompt_text": RECORDED}
        async with gate:
            speech = await client.synthesize(sentence.text, seed=number, **given, **options)
        return Said(sentence, speech.samples, speech.sample_rate, speech.finish_reason, speaker)

    async with AsyncSpeechClient(url) as client:
        return list(await asyncio.gather(*(one(client, i, sentence) for i, sentence in enumerate(sentences))))
