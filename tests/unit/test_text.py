"""What ``normalise`` promises, case by case."""

import random
import unicodedata

import pytest

from triton_speech.text import normalise

SAMPLES = {
    "German": "Äpfel, Öl und Übermut: groß, Straße, ẞ.",
    "French": "Où est l'œuvre de Noël, ça va ?",
    "Spanish": "¿Qué? ¡Mañana!",
    "Polish": "Zażółć gęślą jaźń.",
    "Vietnamese": "Tiếng Việt rất đẹp.",
    "Turkish": "İstanbul'da ışık",
    "Russian": "Привет, ёж!",
    "Greek": "Καλημέρα κόσμε",
    "Arabic": "مرحبا بالعالم",
    "Hebrew": "שָׁלוֹם",
    "Hindi": "नमस्ते दुनिया",
    "Thai": "สวัสดีครับ",
    "Chinese": "今天天气不错，我们去公园。（好吗？）",
    "Japanese": "「こんにちは」、元気ですか？",
    "Korean": "안녕하세요, 세계!",
    "numbers": "On 3/4 at 10:30, 1,234.5 € or 20 °C; 50% of m².",
}


@pytest.mark.parametrize("text", SAMPLES.values(), ids=SAMPLES.keys())
def test_plain_text_of_any_language_is_left_alone(text: str) -> None:
    assert normalise(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("text", SAMPLES.values(), ids=SAMPLES.keys())
def test_decomposed_accents_are_composed(text: str) -> None:
    assert normalise(unicodedata.normalize("NFD", text)) == normalise(text)


@pytest.mark.parametrize(
    "space",
    [
        "\n",
        "\r\n",
        "\t",
        "\v",
        "\f",
        "  ",
        "\x85",
        "\u00a0",
        "\u1680",
        "\u2003",
        "\u202f",
        "\u2028",
        "\u2029",
        "\u3000",
    ],
)
def test_white_space_of_every_kind_is_one_space(space: str) -> None:
    assert normalise(f"{space}one{space}two{space}{space}three{space}") == "one two three"


@pytest.mark.parametrize(
    "invisible",
    [
        "\0",
        "\x07",
        "\x1b",
        "\x7f",
        "\x9f",
        "\u00ad",
        "\u200b",
        "\u200c",
        "\u200d",
        "\u200e",
        "\u202e",
        "\u2060",
        "\ufeff",
        "\ufe0f",
        "\ue000",
        "\ud800",
    ],
)
def test_control_and_zero_width_characters_vanish(invisible: str) -> None:
    assert normalise(f"{invisible}wo{invisible}rd{invisible}") == "word"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("“Don’t”", '"Don\'t"'),
        ("„Ja‘, »nein«, «non» ‹oui›", '"Ja\', "nein", "non" \'oui\''),
        ("it´s 5′ 10″", "it's 5' 10\""),
        ("2010–2020, well‑known, −5", "2010-2020, well-known, -5"),
        ("wait—what", "wait - what"),
        ("他说——好", "他说 - 好"),
        ("— Bonjour", "- Bonjour"),
        ("well… yes", "well... yes"),
        ("好……吧", "好...吧"),
    ],
)
def test_quotes_dashes_and_ellipses_are_the_plain_ones(written: str, read: str) -> None:
    assert normalise(written) == read


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Ｈｅｌｌｏ１２３", "Hello123"),
        ("ｶﾞｷﾞ", "ガギ"),
        ("ﬁnal ﬂight", "final flight"),
        ("𝐇𝐞𝐥𝐥𝐨 𝟙", "Hello 1"),
        ("５０％＋１＝＂x＂", '50%+1="x"'),
    ],
)
def test_styled_letters_and_signs_are_the_plain_ones(written: str, read: str) -> None:
    assert normalise(written) == read


def test_east_asian_punctuation_is_ascii_where_no_such_letters_are() -> None:
    assert normalise("Hello，world！（３：３０）Really？Yes。") == "Hello, world!(3:30)Really? Yes."


def test_east_asian_punctuation_stays_among_its_own_letters() -> None:
    assert normalise("你好，World！") == "你好，World！"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Great 😀! Thanks 👍🏽", "Great! Thanks"),
        ("Hello😀World", "Hello World"),
        ("👩‍👩‍👧 family 🇩🇪 ❤️ love", "family love"),
        ("1️⃣ first", "1 first"),
        ("🎉", ""),
    ],
)
def test_emoji_are_dropped_without_gluing_words(written: str, read: str) -> None:
    assert normalise(written) == read


def test_joiners_stay_in_scripts_that_spell_with_them() -> None:
    persian, malayalam = "می\u200cخواهم", "അവന\u0d4d\u200d"
    assert normalise(persian) == persian
    assert normalise(malayalam) == malayalam


def test_chinese_zero_and_musical_sharp_are_not_taken_for_pictures() -> None:
    assert normalise("二○○五年 C♯") == "二○○五年 C♯"


def test_no_letter_of_unicode_is_lost() -> None:
    """Case S22. Private use and surrogates are no letters."""
    for code in range(0x110000):
        letter = chr(code)
        if unicodedata.category(letter)[0] in "LN":
            assert normalise(f"a{letter}b") not in ("ab", "a b"), f"U+{code:04X}"


def test_normalising_twice_changes_nothing() -> None:
    alphabet = "".join(SAMPLES.values()) + "“”’—–… \n\t\u200b\u200d\u0301\ufe0f，。！：（）😀👍🏽ＡｶﾞＩ％\u0378"
    source = random.Random(0)
    for _ in range(3000):
        once = normalise("".join(source.choices(alphabet, k=source.randint(0, 12))))
        assert normalise(once) == once
