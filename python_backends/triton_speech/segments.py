"""From text to segments that can be spoken one after another: sentences, and long ones cut at their clauses.

    segments("Dr. Smith paid 3.50. Why?")  ->  ["Dr. Smith paid 3.50.", "Why?"]

``Segmenter`` does the same while the text arrives in pieces, and gives the same segments however it was cut.
Where it cannot be told whether a sentence ends, it does not end: a segment too long costs time, one that is cut
within a name costs the melody. Pure, for texts of every script; needs nothing but the standard library.
"""

from __future__ import annotations

import re
import unicodedata

MAX_CHARS = 300
"""Default of the longest segment, in characters."""


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


# Titles and the like stand before a name or a word, never at a sentence's end.
_BEFORE_A_WORD = _words(
    "mr mrs ms dr prof st mt rev hon gen col lt sgt capt cpt maj cmdr sen rep gov pres supt messrs mme mlle mm me",
    "sr sra srta dra hr fr frl dipl ing geb gest bzw ca vgl evtl ggf inkl exkl zzgl sog bspw vs cf approx esp incl",
    "viz resp bd str sig dott avv arch tel ext dept univ",
)
# These stand before a number, and may end a sentence before anything else.
_BEFORE_A_NUMBER = _words(
    "no nos nr art abs abb fig figs tab eq sec ch chap vol pp p pg par ed v kap bl núm num pag pág",
    "jan feb mar apr jun jul aug sep sept oct okt nov dec dez",
)
_AFTER_AN_ORDINAL = _words(
    "januar februar märz april mai juni juli august september oktober november dezember jahrhundert"
)
_MAY_END = frozenset({"a.m", "p.m"})

_EAST_ASIAN_LETTER = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# A full stop of these scripts ends a sentence whatever follows.
_FULL_STOPS = "\u3002\uff01\uff1f\uff61\u0964\u0965\u06d4\u1362\u104b\u17d4"
_MARKS = re.compile(rf"[.!?\u2026\u061f\u203c\u2047-\u2049{_FULL_STOPS}]+|\n")
_CLOSERS = frozenset("\u201d\u2019)]}\u300d\u300f\uff09\u3011\u3009\u300b\uff5d\u3015*_")
# They close in one language and open in another: whatever follows them tells.
_QUOTES = frozenset("\"'\u201c\u2018\u00ab\u00bb\u2039\u203a")
_SPACED_CLOSERS = frozenset("\u00bb\u203a")
_OPENERS = re.compile(r"[\"'\u201c\u2018\u00ab\u00bb(\[*_]+")
_LIST_MARKER = re.compile(r"(?:[-*\u2022\u2013]|\d{1,3}[.)])\s")
_LIST_MARKER_CHARS = 5
_WORD_BEFORE = re.compile(r"(?:[^\W\d_]+\.)*[^\W\d_]+$")
_NUMBER_BEFORE = re.compile(r"(?<![\w.,])\d{1,2}$")
_WORD = re.compile(r"[^\W\d_]+")
_CLAUSE_END = re.compile(r"[,;:\u2013\u2014\u060c\u061b](?=\s)|[\uff0c\u3001\uff1b\uff1a]|\s[-\u2013\u2014](?=\s)")
_SPACE = re.compile(r"\s+")

_PENDING = -1
_NO = 0


def segments(text: str, max_chars: int = MAX_CHARS) -> list[str]:
    """The segments of a whole text: stripped, none empty, none longer than ``max_chars``.

    Nothing but white space between them is left out, and what has no letter or digit at the very end.
    """
    segmenter = Segmenter(max_chars)
    return segmenter.push(text) + segmenter.flush()


class Segmenter:
    """Takes text in pieces, gives back the segments that are complete.

    Args:
        max_chars: longest segment, at least 8 characters.

    Raises:
        ValueError: where ``max_chars`` is smaller.
    """

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        if max_chars < 8:
            raise ValueError(f"max_chars: {max_chars} is too small, allowed is 8 and more")
        self._max_chars = max_chars
        self._text = ""

    @property
    def pending(self) -> str:
        """What was pushed and belongs to no segment yet."""
        return self._text

    def push(self, text: str) -> list[str]:
        """Adds a piece; returns the segments that are complete now, often none."""
        self._text = (self._text + text).lstrip()
        return self._take(final=False)

    def flush(self) -> list[str]:
        """The rest, as if the text ended here. Afterwards the segmenter is as new."""
        complete = self._take(final=True)
        rest, self._text = self._text.strip(), ""
        return [*complete, rest] if _can_be_spoken(rest) else complete

    def clear(self) -> None:
        """Forgets what is pending."""
        self._text = ""

    def _take(self, final: bool) -> list[str]:
        complete = []
        while end := self._next_end(final):
            complete.append(self._text[:end].strip())
            self._text = self._text[end:].lstrip()
        return complete

    def _next_end(self, final: bool) -> int:
        """Where the next segment ends; 0 where that is not known yet."""
        text, limit = self._text, self._max_chars
        for mark in _MARKS.finditer(text):
            if mark.end() > limit:
                break
            end = _end_of_line(text, mark, final) if mark[0] == "\n" else _end_of_sentence(text, mark, final)
            if end == _PENDING:
                return 0
            if end and end <= limit and _can_be_spoken(text[:end]):
                return end
        return _cut(text, limit) if len(text.rstrip() if final else text) > limit else 0


def _end_of_line(text: str, mark: re.Match[str], final: bool) -> int:
    """A line's end ends a sentence before a blank line or an item of a list; other lines were only wrapped."""
    gap = _SPACE.match(text, mark.start())
    assert gap is not None
    rest = text[gap.end() : gap.end() + _LIST_MARKER_CHARS]
    if "\n" in gap[0][1:] or _LIST_MARKER.match(rest):
        return mark.start()
    # An item's mark may still be on its way.
    is_open = not rest or (len(rest) < _LIST_MARKER_CHARS and re.fullmatch(r"[-*\u2022\u2013]|\d{1,3}[.)]?", rest))
    return _PENDING if is_open and not final else _NO


def _end_of_sentence(text: str, mark: re.Match[str], final: bool) -> int:
    end = _after_closers(text, mark.end(), final)
    if end == _PENDING:
        return _PENDING
    if mark[0][-1] in _FULL_STOPS:
        return end
    gap = _SPACE.match(text, end)
    after = gap.end() if gap else end
    if after == len(text):
        return end if final else _PENDING
    if gap is None:
        return end if re.match(f"[{_EAST_ASIAN_LETTER}]", text[after]) else _NO
    opened = _OPENERS.match(text, after)
    begins = opened.end() if opened else after
    if begins == len(text) and not final:
        return _PENDING
    if _goes_on_in_lower_case(text, mark.start(), begins):
        return _NO
    if mark[0] != ".":
        return end
    following = _WORD.match(text, after)
    if following and following.end() == len(text) and not final and _NUMBER_BEFORE.search(text[: mark.start()]):
        return _PENDING
    return _NO if _belongs_to_the_word(text, mark.start(), after) else end


def _after_closers(text: str, at: int, final: bool) -> int:
    """The position behind the quotes and brackets that close at ``at``."""
    while True:
        if at == len(text):
            return at if final else _PENDING
        sign, quote = text[at], at
        if sign in _CLOSERS:
            at += 1
            continue
        if sign.isspace() and sign != "\n":  # French puts a space before the closing quote
            quote = at + 1
            if quote == len(text):
                return at if final else _PENDING
            if text[quote] not in _SPACED_CLOSERS:
                return at
        elif sign not in _QUOTES:
            return at
        if quote + 1 == len(text) and not final:
            return _PENDING
        follower = text[quote + 1 : quote + 2]
        if follower and not (follower.isspace() or follower in _CLOSERS or follower in _QUOTES or follower in ",;"):
            return at
        at = quote + 1


def _goes_on_in_lower_case(text: str, mark: int, begins: int) -> bool:
    """Whether the next word is a small one although the writer uses capitals."""
    return text[begins : begins + 1].islower() and any(sign.isupper() for sign in text[:mark])


def _belongs_to_the_word(text: str, mark: int, after: int) -> bool:
    """Whether the full stop at ``mark`` makes an abbreviation, an initial, an ordinal or an item's number."""
    before = text[max(0, mark - 40) : mark]
    next_is_number = text[after].isdigit()
    if number := _NUMBER_BEFORE.search(before):
        following = _WORD.match(text, after)
        is_ordinal = following is not None and following[0].lower() in _AFTER_AN_ORDINAL
        starts_line = not before[: number.start()].strip(" \t") or before[: number.start()].rstrip(" \t")[-1] == "\n"
        return is_ordinal or starts_line
    match = _WORD_BEFORE.search(before)
    if match is None:
        return False
    word = match[0]
    small = word.lower()
    if small in _BEFORE_A_WORD or (small in _BEFORE_A_NUMBER and next_is_number):
        return True
    if "." in word:
        return small not in _MAY_END
    return len(word) == 1 and word.isupper() and word != "I" and not re.match(f"[{_EAST_ASIAN_LETTER}]", word)


def _cut(text: str, limit: int) -> int:
    """Where to cut a text that is too long: behind a clause, else behind a word, else between two characters."""
    clauses = [match.end() for match in _CLAUSE_END.finditer(text, 0, limit + 1) if match.end() <= limit]
    if clauses and clauses[-1] > limit // 3 and _can_be_spoken(text[: clauses[-1]]):
        return clauses[-1]
    spaces = [match.start() for match in _SPACE.finditer(text, 0, limit + 1)]
    if spaces and spaces[-1] > limit // 3:
        return spaces[-1]
    end = limit
    while end > 1 and (unicodedata.combining(text[end]) or "\u200d" in text[end - 1 : end + 1]):
        end -= 1
    return end if end > 1 else limit


def _can_be_spoken(text: str) -> bool:
    return any(sign.isalnum() for sign in text)
