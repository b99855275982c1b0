"""Text as the words that are said, for both sides of a comparison: what was asked for and what Whisper wrote."""

from __future__ import annotations

import re
import unicodedata

from num2words import num2words

_SIGNS = {"%": " percent ", "&": " and ", "+": " plus ", "=": " equals ", "@": " at ", "#": " number "}
_SHORT = {
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "st": "saint",
    "ok": "okay",
    "prof": "professor",
    "vs": "versus",
}
_UNITS = {"km": "kilometers", "kg": "kilograms", "kilos": "kilograms", "cm": "centimeters", "lbs": "pounds"}
_AFTER_NUMBERS = {"g": "grams", "m": "meters"}
_MOST_DIGITS = 12
"""Of a number that is read as one: a judge that repeats itself can write hundreds of them."""
_YEARS = range(1100, 2100)
_NUMBER_WORD = re.compile(
    r"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|\w+teen|eleven|twelve|\w+ty|hundred|thousand|million)"
)


def words(text: str) -> list[str]:
    """Lower-case words of ``text`` without punctuation: numbers spelled out, signs and abbreviations read."""
    # Whisper writes "cafés" where "cafes" was asked for.
    text = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
    text = text.lower().replace("\u2019", "'")
    text = re.sub(r"(\d),(?=\d{3}\b)", r"\1", text)
    text = re.sub(r"[$](\d+)(?:[.](\d\d)\b)?", lambda found: _money(found[1], found[2]), text)
    text = re.sub(r"\b(\d{1,2}):00\b", r"\1 o'clock", text)
    text = re.sub(r"\b(\d{1,2}):0(\d)\b", r"\1 oh \2", text)
    text = re.sub(r"\b(\d{1,2}):(\d\d)\b", r"\1 \2", text)
    for sign, word in _SIGNS.items():
        text = text.replace(sign, word)
    text = re.sub(
        rf"\b(\d{{1,{_MOST_DIGITS}}})(?:st|nd|rd|th)\b", lambda found: num2words(int(found[1]), to="ordinal"), text
    )
    text = re.sub(r"(\d+)[.](\d+)", lambda found: f"{_spell(found[1])} point {' '.join(map(_spell, found[2]))}", text)
    text = re.sub(r"(\d) ?([gm])\b", lambda found: f"{found[1]} {_AFTER_NUMBERS[found[2]]}", text)
    text = re.sub(r"(\d+)([a-z])", r"\1 \2", text)
    text = re.sub(r"\d+", lambda found: f" {_spell(found[0])} ", text)
    found = re.sub(r"[^a-z ]", " ", text.replace("'", "")).split()
    return _without_and([_UNITS.get(word, _SHORT.get(word, word)) for word in found])


def _money(dollars: str, cents: str | None) -> str:
    text = f"{dollars} dollar" if dollars == "1" else f"{dollars} dollars"
    if cents in (None, "00"):
        return text
    return f"{text} and {cents} cent" if cents == "01" else f"{text} and {cents} cents"


def _spell(digits: str) -> str:
    if len(digits) > _MOST_DIGITS:
        return " ".join(map(_spell, digits))
    number = int(digits)
    kind = "year" if len(digits) == 4 and number in _YEARS and number % 100 else "cardinal"
    return num2words(number, to=kind).replace(",", "").replace("-", " ")


def _without_and(found: list[str]) -> list[str]:
    """ "Two hundred and five" and "two hundred five" are the same number."""
    return [
        word
        for before, word, after in zip(["", *found], found, [*found[1:], ""], strict=False)
        if not (word == "and" and before in ("hundred", "thousand") and _NUMBER_WORD.fullmatch(after))
    ]
