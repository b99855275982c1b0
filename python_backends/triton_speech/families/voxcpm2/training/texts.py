"""The texts of a voice: dictionary phrases, patterns and word lists, of 1 to 40 words, with their phonemes.

Sources come as packages and are named with their licences in ``docs/voice.md``: WordNet 3.0 (Debian's
``wordnet-base``) and a SCOWL word list (Debian's ``wamerican-small``). Without them patterns alone are used.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .blocked import is_blocked
from .settings import TextSettings
from .speakers import SPEAKERS
from .teacher import Phonemes
from .templates import Patterns

MOST_WORDS, MOST_LETTERS, LONGEST_WORD = 40, 260, 16
LEAST_PHONEMES, MOST_PHONEMES = 8, 620
_ALLOWED = re.compile(r"[A-Za-z0-9 ,.?!'\"();:\-]+")
_EXAMPLE = re.compile(r'"([^"]+)"')


@dataclass(frozen=True)
class Row:
    """A text, its phoneme ids and who says it (an index into SPEAKERS)."""

    text: str
    ids: list[int]
    speaker: int


def make_texts(settings: TextSettings, teacher: Path, target: Path) -> int:
    """Writes rows as lines of JSON, shuffled; returns how many. The same settings give the same rows."""
    source = random.Random(settings.seed)
    held_out = [] if settings.held_out is None else _held_out(settings.held_out)
    texts = list(dict.fromkeys(text for text in _draw(settings, source) if _fits(text)))
    texts = [text for text in texts if not _has_one(_only_words(text), held_out)]
    source.shuffle(texts)
    phonemes = Phonemes(teacher)
    count = 0
    with target.open("w", encoding="utf-8") as file:
        for text in texts:
            ids = phonemes.ids(text)
            if not LEAST_PHONEMES <= len(ids) <= MOST_PHONEMES:
                continue
            file.write(json.dumps(asdict(Row(text, ids, _speaker(settings, source)))) + "\n")
            count += 1
    return count


def read_rows(path: Path) -> list[Row]:
    """What ``make_texts`` wrote."""
    with path.open(encoding="utf-8") as file:
        return [Row(**json.loads(line)) for line in file]


def _speaker(settings: TextSettings, source: random.Random) -> int:
    if source.random() < settings.default_speaker_share:
        return 0
    return source.randrange(1, len(SPEAKERS))


def _held_out(path: Path) -> list[str]:
    """Every string of a JSON file of lists and objects, as words."""
    found: list[str] = []
    todo: list[object] = [json.loads(path.read_text(encoding="utf-8"))]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            found.append(_only_words(one))
        elif isinstance(one, list | dict):
            todo += one.values() if isinstance(one, dict) else one
    return [text for text in found if text.strip()]


def _has_one(text: str, held_out: list[str]) -> bool:
    return any(one in text for one in held_out)


def _only_words(text: str) -> str:
    """Without case and punctuation, with a space at both ends."""
    return f" {' '.join(re.findall(r'[a-z0-9]+', text.lower().replace(chr(39), '')))} "


def _fits(text: str) -> bool:
    words = text.split()
    return (
        0 < len(words) <= MOST_WORDS
        and len(text) <= MOST_LETTERS
        and max(map(len, words)) <= LONGEST_WORD
        and _ALLOWED.fullmatch(text) is not None
        and not is_blocked(text)
    )


def _draw(settings: TextSettings, source: random.Random) -> Iterator[str]:
    patterns = Patterns(source)
    for _ in range(settings.patterns):
        yield patterns.sentence()
    if settings.wordnet is not None:
        examples, meanings = _wordnet(settings.wordnet)
        source.shuffle(examples)
        source.shuffle(meanings)
        yield from examples[: settings.examples]
        yield from meanings[: settings.meanings]
        pool = examples + [patterns.sentence() for _ in range(len(examples) // 3)]
        for _ in range(settings.joined if pool else 0):
            yield " ".join(source.choice(pool) for _ in range(source.randint(2, 5)))
    if settings.word_list is not None:
        yield from _word_lists(settings, source)


def _wordnet(folder: Path) -> tuple[list[str], list[str]]:
    """Example phrases and meanings of WordNet's ``data.*``, as sentences."""
    examples, meanings = [], []
    for path in sorted(folder.glob("data.*")):
        for line in path.read_text(encoding="latin-1").splitlines():
            gloss = line.partition(" | ")[2]
            examples += [_sentence(found) for found in _EXAMPLE.findall(gloss)]
            meanings.append(_sentence(re.sub(r"\([^)]*\)", "", gloss.partition('"')[0])))
    return [text for text in examples if text], [text for text in meanings if text.count(" ") >= 3]


def _sentence(text: str) -> str:
    text = re.sub(r"\s+", " ", text.replace("`", "'").replace("--", ", ")).strip(" ;,:")
    text = re.sub(r"\s+([,.;:?!])", r"\1", text)
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def _word_lists(settings: TextSettings, source: random.Random) -> Iterator[str]:
    assert settings.word_list is not None
    known = settings.word_list.read_text(encoding="utf-8").splitlines()
    words = [word for word in known if re.fullmatch(r"[a-z]{3,13}", word)]
    source.shuffle(words)
    for _ in range(settings.word_lists):
        chosen = [words.pop() for _ in range(source.randint(1, 6)) if words]
        if chosen:
            yield _sentence(source.choice((" ", ", ")).join(chosen))
