"""A long text is cut at sentences and packed; nothing of it is lost, and a short one stays as it is."""

from __future__ import annotations

import random

from triton_speech.long_text import LongText, Segment, cut, segment_seed

SENTENCES = "One is here. Two is there! Is three? Four."


def anything(text: str) -> bool:
    return True


def test_a_short_text_stays_as_it_is() -> None:
    assert cut(f" {SENTENCES}\n", 100, anything) == [f" {SENTENCES}\n"]


def test_neighbouring_sentences_share_a_segment() -> None:
    assert cut(SENTENCES, 27, anything) == ["One is here. Two is there!", "Is three? Four."]
    assert cut(SENTENCES, 20, anything) == ["One is here.", "Two is there!", "Is three? Four."]


def test_what_stands_between_sentences_stays_between_them() -> None:
    assert cut("一二三。四五六！七八九？十。", 8, anything) == ["一二三。四五六！", "七八九？十。"]
    assert cut("He came.\n\nShe went. They stayed here.", 20, anything) == [
        "He came.\n\nShe went.",
        "They stayed here.",
    ]


def test_a_sentence_that_is_too_long_is_cut_at_a_clause() -> None:
    assert cut("When the rain had ended, we went out.", 30, anything) == ["When the rain had ended,", "we went out."]


def test_a_segment_that_the_model_cannot_hold_is_cut_further() -> None:
    text = "水" * 50
    stretches = cut(text, 40, lambda stretch: len(stretch.encode()) <= 60)
    assert "".join(stretches) == text
    assert all(len(stretch.encode()) <= 60 for stretch in stretches)
    # Also where it is short enough as text.
    assert len(cut(text, 300, lambda stretch: len(stretch.encode()) <= 60)) > 1


def test_what_can_never_fit_comes_to_an_end() -> None:
    assert "".join(cut("word " * 20, 30, lambda stretch: False)).replace(" ", "") == "word" * 20


def test_random_texts_lose_nothing_and_keep_the_limit() -> None:
    source = random.Random(1)
    pieces = ["Dr. Smith", "3.50", "went", "home", ". ", "! ", "? ", ", ", "\n\n", " ", "水は青い。", "“Yes.” ", "…"]
    for _ in range(300):
        text = "".join(source.choice(pieces) for _ in range(source.randrange(1, 80)))
        limit = source.randrange(8, 60)
        stretches = cut(text, limit, anything)
        letters = [sign for sign in text if sign.isalnum()]
        assert [sign for stretch in stretches for sign in stretch if sign.isalnum()] == letters
        assert all(len(stretch) <= limit for stretch in stretches) or stretches == [text]


def test_the_first_segment_has_the_requests_own_seed_and_each_later_one_another() -> None:
    for seed in (0, 1, 2**64 - 1):
        seeds = [segment_seed(seed, index) for index in range(1000)]
        assert seeds[0] == seed
        assert len(set(seeds)) == 1000
        assert all(0 <= one < 2**64 for one in seeds)
    # Neighbouring requests share no segment's noise.
    assert not {segment_seed(1, k) for k in range(1, 100)} & {segment_seed(2, k) for k in range(100)}


def test_the_seeds_are_those_of_splitmix64() -> None:
    """Its published first outputs for the seed 0."""
    assert [segment_seed(0, index) for index in (1, 2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_what_follows_passes_between_stages_unchanged() -> None:
    for rest in (LongText([], 0, 12.5, None), LongText([Segment([1, 2], 9), Segment([3], 4)], 125, 6.25, 40)):
        assert LongText.from_json(rest.to_json()) == rest
