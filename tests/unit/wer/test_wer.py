"""What the word error rate is made of."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jiwer", reason="the extra 'judge' is not installed")
pytest.importorskip("num2words", reason="the extra 'judge' is not installed")

from tests.perf.wer.__main__ import SENTENCES, load_sentences, show
from tests.perf.wer.judge import errors
from tests.perf.wer.normal import words
from tests.perf.wer.report import Figures, table
from tests.perf.wer.sound import harmonic_to_noise, mel_distance

from triton_speech.families.voxcpm2.training.blocked import is_blocked
from triton_speech.families.voxcpm2.training.templates import Patterns


def test_held_out_sentences_are_enough_and_of_every_kind() -> None:
    kinds = json.loads(SENTENCES.read_text(encoding="utf-8"))
    texts = [text for some in kinds.values() for text in some]
    assert len(texts) == len(set(texts)) >= 100
    assert all(len(some) >= 15 for some in kinds.values())
    assert all(20 <= len(text.split()) <= 40 for text in kinds["long"])
    assert all(text.endswith("?") for text in kinds["questions"])
    assert all(any(letter.isdigit() for letter in text) for text in kinds["numbers"])


def test_no_held_out_sentence_is_blocked_or_made_by_a_pattern() -> None:
    held_out = {one.text for one in load_sentences()}
    assert [text for text in held_out if is_blocked(text)] == []
    patterns = Patterns(random.Random(3))
    assert held_out.isdisjoint(patterns.sentence() for _ in range(50_000))


def test_a_limit_takes_some_of_every_kind() -> None:
    assert len({one.category for one in load_sentences(6)}) == 6
    assert len(load_sentences(6)) == 6


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("It was 1987.", "it was nineteen eighty-seven"),
        ("The total comes to 36 dollars.", "The total comes to $36."),
        ("The total comes to 36 dollars.", "The total comes to $36.00."),
        ("1 dollar", "$1"),
        ("1 dollar and 50 cents", "$1.50"),
        ("room number 614", "room #614"),
        ("1,200 tickets", "one thousand two hundred tickets"),
        ("at 7:45", "at seven forty five"),
        ("at 6 o'clock", "At 6:00"),
        ("March 21st", "March twenty first"),
        ("two hundred and five", "205"),
        ("Dr. Henderson", "doctor henderson"),
        ("75%", "seventy-five percent"),
        ("It's late; let's go!", "Its late lets go"),
        ("3.5 miles", "three point five miles"),
        ("250 grams of flour", "250g of flour"),
        ("482 meters long", "482 m long"),
        ("18 kilos", "18kg"),
        ("the cafes", "the caf\u00e9s"),
        ("the cafes", "the cafe\u0301s"),
        ("1" * 400, "one " * 400),
        ("1" * 400 + "th", "one " * 400 + "th"),
    ],
)
def test_both_sides_of_a_comparison_are_read_alike(first: str, second: str) -> None:
    assert words(first) == words(second)


def test_and_stays_where_it_is_no_number() -> None:
    assert "and" in words("the hundred and the one")
    assert "and" in words("bread and butter")


def test_letters_after_numbers_are_units_only_where_they_stand_alone() -> None:
    assert words("at 7 a.m. in room 5 my 3 guests") == words("at seven a m in room five my three guests")


def test_errors_count_words_and_letters() -> None:
    found = errors(["The cat sat.", "On the mat."], ["the cat sat", "on a mat"])
    assert found.wer == pytest.approx(1 / 6)
    assert found.cer == pytest.approx(3 / 17)


def voice(noise: float) -> np.ndarray:
    time = np.arange(24000) / 24000
    tone = sum(np.sin(2 * np.pi * 120 * k * time) / k for k in range(1, 20))
    return (0.1 * tone + noise * np.random.default_rng(0).standard_normal(24000)).astype(np.float32)


def test_a_hoarse_voice_has_less_of_the_harmonic() -> None:
    clear, hoarse = harmonic_to_noise(voice(0.0)), harmonic_to_noise(voice(0.1))
    assert clear[0] > hoarse[0] + 6
    assert clear[1] == pytest.approx(120, rel=0.02)
    assert math.isnan(harmonic_to_noise(np.zeros(24000, np.float32))[0])


def test_the_mel_distance_is_zero_for_the_same_and_does_not_mind_a_pause() -> None:
    first, other = voice(0.0), voice(0.05)
    later = np.concatenate((first[:12000], first[12000:12256].repeat(4), first[12000:]))
    assert mel_distance(first, first) == pytest.approx(0)
    assert mel_distance(first, later) < 0.3 * mel_distance(first, other)


def test_the_json_has_nothing_for_what_was_not_measured(tmp_path: Path) -> None:
    row = {"text": "A cat.", "category": "everyday", "heard": "a cat", "seconds": 1.0, "finish_reason": "stop"}
    show(tmp_path, [Figures("plain:1", [row | {"hnr": math.nan, "pitch": 100.0}])], "x", tmp_path / "figures.json")

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is not JSON")

    content = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert content["runs"][0]["summary"]["nearest %"] is None
    assert content["runs"][0]["rows"][0]["hnr"] is None


def test_the_table_leaves_out_what_was_not_measured() -> None:
    row = {"text": "A cat.", "category": "everyday", "heard": "a cat", "seconds": 1.0, "finish_reason": "length"}
    figures = Figures("plain:1", [row | {"hnr": math.nan, "pitch": 100.0}])
    line = figures.summary()
    assert (line["WER %"], line["length %"], line["s/word"]) == (0, 100, 0.5)
    assert table([line], ["run", "WER %", "nearest %"]).splitlines()[-1] == "| plain:1 | 0.00 |  |"
