"""Text becomes segments to be spoken: sentences are found in every script, and nothing is lost."""

from __future__ import annotations

import random

import pytest

from triton_speech.segments import Segmenter, segments

WHOLE = "|"
EXAMPLES = {
    "plain sentences": "Good morning.|How are you?|Fine!",
    "title": "Dr. Smith met Mrs. Jones and Prof. Lee.|They talked.",
    "initials": "J. R. R. Tolkien wrote it.|So did C. S. Lewis.",
    "the pronoun is no initial": "So do I.|Then we agree.",
    "decimal number": "It costs 3.14 euros.|Cheap!",
    "version and domain": "See example.com or v1.2.3 of Node.js for more.|Thanks.",
    "number at the end": "He is 30.|She is 25.|They met in 1999.|Then they left.",
    "numbered thing": "See Fig. 5 and No. 7 on Jan. 3 for that.|No.|I will not.",
    "time of day": "We meet at 5 p.m.|Then we eat.",
    "inner dots": "The U.S. Army came, e.g. Bob and i.e. Alice.|Good.",
    "small letter after a mark": '"Really?" he asked.|Yahoo! is a name.',
    "ellipsis that goes on": "Well... maybe not.|Wait… what?|Hm...|Yes.",
    "many marks": "What?!|No!!!|Fine.",
    "a writer without capitals": "hello there.|how are you?|fine.",
    "quotes close": "He said: “Go.”|Then he left.|‘Yes.’|(Or no.)|Well.",
    "straight quotes": 'He said "Go."|Then he left.|"I will."|Good.',
    "German quotes": "„Hallo.“|Sie ging.|»Ja.«|Er auch.|»Nein« rief sie.",
    "French quotes": "« Oui. »|Alors il part.|« Non » dit-il.",
    "German date": "Am 3. Oktober ist frei.|Das gilt seit dem 19. Jahrhundert.|Ende.",
    "German abbreviations": "Das ist z.B. Obst bzw. Gemüse, ca. fünf Kilo.|Gut.",
    "Spanish": "¿Cómo estás?|¡Bien!|El Sr. García vino.|¿Seguro?",
    "Chinese": "你好。|你好吗？|很好！|他说：“走吧。”|然后走了。",
    "Chinese quote that opens": "他走了。|“再见”他说。",
    "Japanese": "「はい。」|そうです。|本当？",
    "Hindi and Urdu": "नमस्ते।|आप कैसे हैं?|ہاں۔",
    "Arabic": "مرحبا.|كيف حالك؟|بخير.",
    "Latin before Chinese": "Hello.|你好。|OK!",
    "list": "You need:|- two eggs|- some flour|1. Mix them.|2. Bake them.",
    "wrapped line": "This line was wrapped\nby a mail program.|And here it ends.",
    "paragraph": "A heading\n\n|A text.",
    "signs alone are no segment": "Hm.|... !! Right.|\U0001f600 Next.",
    "markdown": "**Important.**|Then _this._|End.",
}


def example(name: str) -> tuple[str, list[str]]:
    """The text, with a space where a segment ends (a line's end in lists, nothing in East Asian writing)."""
    marked = EXAMPLES[name]
    expected = [part.strip() for part in marked.split(WHOLE)]
    gap = {"list": "\n", "Chinese": "", "Chinese quote that opens": "", "Japanese": "", "paragraph": ""}.get(name, " ")
    return marked.replace(WHOLE, gap), expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_sentences_are_found(name: str) -> None:
    text, expected = example(name)
    assert segments(text) == expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_how_the_text_arrives_changes_no_segment(name: str) -> None:
    text, expected = example(name)
    segmenter = Segmenter()
    one_by_one = [segment for sign in text for segment in segmenter.push(sign)]
    assert one_by_one + segmenter.flush() == expected


def test_random_texts_in_random_pieces_give_the_same_segments_and_lose_nothing() -> None:
    source = random.Random(1)
    parts = ["Dr", ".", "!", "?", "\u2026", " ", " ", "\n", '"', "\u201d", "\u00bb", "a", "B", "word", "I", "3", "- ",
             "\u3002", "\u4f60", "\u201c", "(", ")", "e.g", "Oktober", ",", "1.", "No", "\u0301"]  # fmt: skip
    for _ in range(2000):
        text = "".join(source.choices(parts, k=source.randrange(60)))
        max_chars = source.choice([8, 20, 300])
        whole = segments(text, max_chars)
        segmenter, pieces, at = Segmenter(max_chars), [], 0
        while at < len(text):
            size = source.randrange(1, 9)
            pieces += segmenter.push(text[at : at + size])
            at += size
        assert pieces + segmenter.flush() == whole, repr(text)
        assert all(0 < len(segment) <= max_chars for segment in whole)
        letters = [sign for sign in text if sign.isalnum()]
        assert [sign for segment in whole for sign in segment if sign.isalnum()] == letters


def test_a_sentence_is_given_as_soon_as_the_next_one_begins() -> None:
    segmenter = Segmenter()
    assert segmenter.push("Hello there.") == []
    assert segmenter.push(" ") == []
    assert segmenter.push("H") == ["Hello there."]
    assert segmenter.pending == "H"


def test_a_chinese_sentence_is_given_with_the_next_character() -> None:
    segmenter = Segmenter()
    assert segmenter.push("\u4f60\u597d\u3002") == []
    assert segmenter.push("\u518d") == ["\u4f60\u597d\u3002"]


def test_flush_gives_the_rest_and_forgets_it() -> None:
    segmenter = Segmenter()
    segmenter.push("and then")
    assert segmenter.flush() == ["and then"]
    assert segmenter.flush() == []
    segmenter.push("One.")
    segmenter.clear()
    assert segmenter.push("Two. T") == ["Two."]


@pytest.mark.parametrize("text", ["", "  \n ", "...", "?!", "\U0001f600", "\u2014"])
def test_what_cannot_be_spoken_is_no_segment(text: str) -> None:
    assert segments(text) == []


def test_a_long_sentence_is_cut_behind_a_clause() -> None:
    first, second = "He took the early train to the city, where his sister lived,", "and he stayed there."
    assert segments(f"{first} {second}", 70) == [first, second]


def test_a_long_sentence_without_clauses_is_cut_between_words() -> None:
    assert segments("word " * 10, 22) == ["word word word word", "word word word word", "word word"]


def test_text_without_spaces_is_cut_between_characters_and_keeps_accents() -> None:
    assert segments("a" * 20, 8) == ["a" * 8, "a" * 8, "a" * 4]
    assert segments("aaaaaaae\u0301bbb", 8) == ["aaaaaaa", "e\u0301bbb"]
    assert segments("\u6c34" * 20, 8) == ["\u6c34" * 8, "\u6c34" * 8, "\u6c34" * 4]


def test_a_limit_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="max_chars: 7 is too small"):
        Segmenter(7)
