"""The soak's streams: what is asked for, what it sounds like alone, and how its caller treats it."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import soak_family
import soundfile
from soak_hearing import Manner

PIPELINES = soak_family.FAMILIES["voxcpm2"].pipelines
SHORTEST, LONGEST = 0.3, 3.0
SEGMENT_CHARS = 100
"""Longer texts are cut; ``random_text`` makes none that are."""
SENTENCES = (4, 12)
"""Of a long text: two to six segments."""
WORDS = ("the", "a", "old", "quick", "brown", "fox", "jumps", "over", "river", "morning", "kettle", "window", "train")
STABLE = ("stable-0", "stable-1", "stable-2", "stable-3")
RESTLESS = ("restless-0", "restless-1", "restless-2")
TAKES = (4, 5)
"""The recordings, by number, that the restless voices are replaced by."""
UNKNOWN_VOICE = "is not known"

Options = Mapping[str, Any]


def recording(number: int) -> bytes:
    """A WAV file of 1.2 s or more; no two numbers sound the same."""
    time = np.arange(int((1.2 + 0.3 * number) * 16_000)) / 16_000
    pitch = 90 + 37 * number
    samples = 0.1 * sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 20))
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV")
    return file.getvalue()


RECORDINGS = [recording(number) for number in range(6)]
STABLE_RECORDINGS: Mapping[str, Options] = {
    "stable-0": {"reference": RECORDINGS[0]},
    "stable-1": {"reference": RECORDINGS[1]},
    "stable-2": {"prompt_audio": RECORDINGS[2], "prompt_text": "One two three."},
    "stable-3": {"reference": RECORDINGS[3], "prompt_audio": RECORDINGS[2], "prompt_text": "One two."},
}


@dataclass
class Marked:
    """A request whose samples are known: one of ``alone``, which has more than one for a voice that is replaced."""

    options: Options
    solo_options: Sequence[Options]
    is_long: bool = False
    alone: list[Any] = field(default_factory=list)

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Those that speak it."""
        pipelines = soak_family.chosen.pipelines
        return pipelines[:1] if self.is_long else pipelines


def random_text(source: random.Random) -> str:
    return " ".join(source.choices(WORDS, k=source.randint(1, 12))).capitalize() + "."


def random_long_text(source: random.Random) -> str:
    return " ".join(random_text(source) for _ in range(source.randint(*SENTENCES))) + " The end of a long, long text."


def random_options(source: random.Random, number: int, *, is_long: bool = False) -> Options:
    """One request; the kinds take turns. Long ones are limited by their text alone, and their voices stay."""
    options: dict[str, Any] = {
        "text": random_long_text(source) if is_long else random_text(source),
        "seed": source.getrandbits(32),
    }
    if not is_long:
        options["max_seconds"] = round(source.uniform(SHORTEST, LONGEST), 2)
    options |= soak_family.chosen.drawn(source)
    kinds: Sequence[Options] = (
        {},
        {"voice": STABLE[number // 7 % len(STABLE)]},
        {"reference": RECORDINGS[number // 7 % 4]},
        soak_family.chosen.described,
        {"prompt_audio": RECORDINGS[2], "prompt_text": "One two three."},
        {"reference": RECORDINGS[3], "prompt_audio": RECORDINGS[2], "prompt_text": "One two."},
        {"voice": RESTLESS[number // 7 % len(RESTLESS)]},
    )
    return {**options, **kinds[number % (len(kinds) - is_long)]}


def make_marked(source: random.Random, number: int, *, are_long: bool = False) -> list[Marked]:
    marked = []
    for n in range(number):
        options = random_options(source, n, is_long=are_long)
        takes = [options]
        if options.get("voice") in RESTLESS:
            without = {name: value for name, value in options.items() if name != "voice"}
            takes = [{**without, "reference": RECORDINGS[take]} for take in TAKES]
        marked.append(Marked(options, takes, are_long))
    return marked


def random_schedule(source: random.Random) -> list[int]:
    return [source.randint(1, 8) for _ in range(source.randint(1, 4))]


def random_manner(source: random.Random, cancels: float, slow: float) -> Manner:
    """Of all callers, the share ``cancels`` leaves, half of these before the first chunk, and ``slow`` reads slowly.

    Who leaves does so at once, while the request is taken in, waits for a place or is in its prompt; at a chunk, or
    between two.
    """
    pause = source.uniform(0.05, 0.3) if source.random() < slow else 0.0
    if source.random() >= cancels:
        return Manner(pause=pause)
    if source.random() < 0.5:
        return Manner(leaves_after_seconds=source.choice((0.0, source.uniform(0, 0.1), source.uniform(0, 1.0))))
    lingers = source.choice((0.0, source.uniform(0, 0.05)))
    return Manner(leaves_after_chunks=source.randint(1, 4), lingers=lingers, pause=pause)


def shown(options: Options) -> dict[str, Any]:
    """For a sentence about them."""
    short: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, bytes):
            short[name] = f"{len(value)} bytes"
        else:
            short[name] = f"{value[:60]}... ({len(value)})" if isinstance(value, str) and len(value) > 100 else value
    return short
