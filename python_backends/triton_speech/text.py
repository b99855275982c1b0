"""What a text is turned into before any model reads it. The same for every language: no letter is lost.

Numbers, units and abbreviations stay as they are written; reading them out is the model's part.
"""

from __future__ import annotations

import re
import unicodedata

_PUNCTUATION = str.maketrans(
    {
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\u301d\u301e\u301f", '"'),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2039\u203a\u2032\u00b4", "'"),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63", "-"),
        "\u2025": "..",
    }
)
_ELLIPSES = re.compile("[\u2026\u22ef]+")
_LONG_DASHES = re.compile("[\u2014\u2015\u2e3a\u2e3b\ufe58]+")

# A letter or digit in the width, weight or ligature of some typeface is the plain letter.
_STYLED_LETTERS = re.compile(
    "[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff61-\uff9f\ufb00-\ufb06\U0001d400-\U0001d7ff]+"
)
_FULL_WIDTH_SIGNS = re.compile("[\uff02-\uff07\uff0a\uff0b\uff0d\uff0f\uff1c-\uff1e\uff20\uff3b-\uff40\uff5b-\uff5d]+")

# Marks of Chinese and Japanese writing stay where such letters are, for models know them there.
_EAST_ASIAN_LETTER = re.compile(
    "[\u1100-\u11ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_ASCII_MARKS = dict(
    zip(
        "\uff0c\u3001\u3002\uff0e\uff01\uff1f\uff1a\uff1b\uff08\uff09\uff5e",
        ",,..!?:;()~",
        strict=True,
    )
)
_EAST_ASIAN_MARK = re.compile(f"[{''.join(_ASCII_MARKS)}]")
_CLOSING_MARK_BEFORE_LETTER = re.compile(r"[\uff0c\u3001\u3002\uff0e\uff01\uff1f\uff1a\uff1b](?=[^\W\d_])")

_PICTURE = (
    "[\u231a\u231b\u23e9-\u23fa\u2600-\u266c\u2670-\u2775\u2794-\u27bf\u2b00-\u2bff\ufffc\ufffd"
    "\U0001f000-\U0001f0ff\U0001f1e6-\U0001faff]"
)
_PICTURES = re.compile(rf"\s?(?:{_PICTURE}\s?)+")
_NO_SPACE_BEFORE = ",.!?;:)\u3002\uff0c\uff01\uff1f"

# Joiners spell words in the scripts from Arabic to Myanmar (Persian, Hindi, Malayalam ...), as letters do.
_STRAY_JOINER = re.compile("(?<![\u0600-\u109f])[\u200c\u200d]")
_KEPT_FORMAT = frozenset("\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u08e2")
_INVISIBLE_MARK = re.compile("[\u034f\u20e3\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cs"})


def normalise(text: str) -> str:
    """``text`` as one line of NFC Unicode in the punctuation that speech models know.

    White space of every kind becomes single spaces; control characters, zero-width characters and pictures
    (emoji) are dropped; quotes are straight, a short dash is "-", a long one " - ", an ellipsis "...".
    Letters of every script, accents and digits stay. The result may be empty. Applying it twice changes nothing.
    """
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    text = _STRAY_JOINER.sub("", _INVISIBLE_MARK.sub("", text))
    text = "".join(c for c in text if c in _KEPT_FORMAT or unicodedata.category(c) not in _INVISIBLE_CATEGORIES)
    text = _PICTURES.sub(_gap, text)
    text = _STYLED_LETTERS.sub(_plain, text)
    text = _FULL_WIDTH_SIGNS.sub(_plain, text)
    if not _EAST_ASIAN_LETTER.search(text):
        text = _CLOSING_MARK_BEFORE_LETTER.sub(r"\g<0> ", text)
        text = _EAST_ASIAN_MARK.sub(lambda match: _ASCII_MARKS[match[0]], text)
    text = _LONG_DASHES.sub(" - ", _ELLIPSES.sub("...", text.translate(_PUNCTUATION)))
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _plain(match: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", match[0])


def _gap(pictures: re.Match[str]) -> str:
    following = pictures.string[pictures.end() : pictures.end() + 1]
    return "" if following in _NO_SPACE_BEFORE else " "
