"""Scripts: who says what, and which voices they have."""

import re

import pytest

from triton_speech.errors import SpeechError
from triton_speech.families.vibevoice.long_script import cut_script
from triton_speech.families.vibevoice.script import Turn, choose_voices, read_script


def test_speakers_are_counted_from_the_first() -> None:
    script = read_script("Speaker 1: Hello\nspeaker 2 :  Good day: my friend \n\nSPEAKER 1\uff1aBye")
    assert script.numbers == (1, 2)
    assert script.turns == (Turn(0, "Hello"), Turn(1, "Good day: my friend"), Turn(0, "Bye"))


def test_a_script_may_count_from_zero() -> None:
    assert read_script("Speaker 0: a\nSpeaker 1: b").turns == (Turn(0, "a"), Turn(1, "b"))


def test_a_text_without_speakers_is_one_turn_of_one_speaker() -> None:
    script = read_script("Once upon a time\nthere was: a text.")
    assert script.turns == (Turn(0, "Once upon a time there was: a text."),)
    assert script.numbers == (1,)


def test_a_line_without_a_speaker_goes_on_with_the_turn_before_it() -> None:
    script = read_script("Speaker 1: One\ntwo\nSpeaker 2: three\n\nfour")
    assert script.turns == (Turn(0, "One two"), Turn(1, "three  four"))


def test_what_stands_before_the_first_speaker_is_said_by_the_first() -> None:
    assert read_script("A title\nSpeaker 2: x\nSpeaker 1: y").turns == (Turn(1, "A title"), Turn(1, "x"), Turn(0, "y"))


def test_a_turn_without_a_word_is_left_out_with_its_speaker() -> None:
    script = read_script("Speaker 1:\nSpeaker 3: hi\nSpeaker 7: ")
    assert script.turns == (Turn(0, "hi"),)
    assert script.numbers == (3,)


def test_a_speaker_within_a_line_is_text() -> None:
    assert read_script("Speaker 1: I said Speaker 2: no").turns == (Turn(0, "I said Speaker 2: no"),)


@pytest.mark.parametrize("text", ["", " \n ", "Speaker 1:", "Speaker 1: \nSpeaker 2:"])
def test_a_script_without_a_word_is_refused(text: str) -> None:
    with pytest.raises(SpeechError, match=r"^TEXT: holds nothing that can be spoken$"):
        read_script(text)


def test_more_than_four_speakers_are_refused() -> None:
    text = "\n".join(f"Speaker {number}: hi" for number in (1, 2, 3, 5, 9))
    with pytest.raises(SpeechError, match=re.escape("TEXT: has 5 speakers (1, 2, 3, 5, 9), at most 4 are allowed")):
        read_script(text)
    many = "\n".join(f"Speaker {number}: hi" for number in range(1, 500))
    with pytest.raises(SpeechError, match=r"has 499 speakers \(1, 2, 3, 4, 5, 6, 7, 8, \.\.\.\)"):
        read_script(many)


@pytest.mark.parametrize(
    ("numbers", "voices"),
    [((1, 2), (0, 1)), ((1, 3), (0, 1)), ((0, 1), (0, 1)), ((2, 1), (1, 0)), ((3, 1, 2), (1, 2, 0))],
)
def test_voices_are_given_to_the_speakers_as_they_enter(numbers: tuple[int, ...], voices: tuple[int, ...]) -> None:
    script = read_script("\n".join(f"Speaker {number}: hi" for number in numbers))
    assert choose_voices(script, len(numbers)) == voices
    assert choose_voices(script, 0) == ()


@pytest.mark.parametrize(("count", "lack"), [(1, "1 voice"), (2, "2 voices"), (4, "4 voices")])
def test_speakers_and_voices_that_are_not_as_many_are_told(count: int, lack: str) -> None:
    script = read_script("Speaker 6: a\nSpeaker 1: b\nSpeaker 3: c\nSpeaker 6: d")
    told = (
        f"VOICE: has {lack} for 3 speakers (Speaker 6, Speaker 1, Speaker 3); give one for each, in this order, or none"
    )
    with pytest.raises(SpeechError, match=f"^{re.escape(told)}$"):
        choose_voices(script, count)


def words(turn: Turn) -> int:
    return len(turn.text.split())


def test_a_long_script_is_cut_between_turns() -> None:
    script = read_script("Speaker 1: a b c\nSpeaker 2: d e\nSpeaker 1: f g h i\nSpeaker 2: j")
    parts = cut_script(script, words, 5)
    assert [[turn.text for turn in part.turns] for part in parts] == [["a b c", "d e"], ["f g h i", "j"]]
    assert {part.numbers for part in parts} == {(1, 2)}
    assert [turn for part in parts for turn in part.turns] == list(script.turns)


def test_no_part_of_a_long_turn_loses_its_speaker() -> None:
    long = " ".join(f"Sentence {index} of it." for index in range(9))
    script = read_script(f"Speaker 1: Who?\nSpeaker 2: {long}\nSpeaker 1: So.")
    parts = cut_script(script, words, 12)
    assert all(sum(map(words, part.turns)) <= 12 for part in parts)
    turns = [turn for part in parts for turn in part.turns]
    assert [turn.speaker for turn in turns] == [0, *[1] * (len(turns) - 2), 0]
    assert " ".join(turn.text for turn in turns[1:-1]) == long
    assert all(turn.text.endswith(".") for turn in turns[1:-1])
