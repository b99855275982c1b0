"""Stored voices through the real server: heard as their recordings are, from the next request on, and never mixed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.voices.store import VoiceLimits, VoiceStore
from triton_speech.voices.voice import Voice

RATE = 16_000
TEXT = {"TEXT": "Hello there.", "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.4], np.float32)}
PATCH = (2, 8)


def recording(pitch: float, seconds: float = 1.2) -> bytes:
    time = np.arange(int(seconds * RATE)) / RATE
    samples = 0.1 * sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 20))
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV")
    return file.getvalue()


ANN, BOB, EVE = recording(200), recording(110), recording(300)
RECORDINGS = {
    "reference": {"REFERENCE_AUDIO": ANN},
    "continuation": {"PROMPT_AUDIO": BOB, "PROMPT_TEXT": "One, two (three)."},
    "reference_continuation": {"REFERENCE_AUDIO": ANN, "PROMPT_AUDIO": BOB, "PROMPT_TEXT": "One two."},
}


class Voices:
    """The model ``voices`` of a server, and its pipelines."""

    def __init__(self, caller: Any) -> None:
        self._caller = caller

    def ask(self, command: str, name: str | None = None, **inputs: Any) -> Any:
        """The answer's JSON, or the text of its error."""
        given = {"COMMAND": command, **({} if name is None else {"NAME": name}), **inputs}
        answer = self._caller.ask("voices", given, ("RESULT",))
        return answer.errors[0] if answer.errors else json.loads(answer.responses[0].as_numpy("RESULT").item())

    def add(self, name: str, **recordings: Any) -> Any:
        added = self.ask("add", name, **recordings)
        assert isinstance(added, dict), added
        assert added["problem"] == ""
        return added

    def speak(self, pipeline: str, **inputs: Any) -> Any:
        answer = self._caller.ask(pipeline, {**TEXT, **inputs})
        assert not answer.errors
        return answer.samples()

    def refusal(self, pipeline: str, **inputs: Any) -> str:
        answer = self._caller.ask(pipeline, {**TEXT, **inputs})
        assert (len(answer.errors), answer.finals, answer.responses) == (1, 1, [])
        return str(answer.errors[0]).removeprefix("in ensemble 'voxcpm2_pipeline', ")

    def names(self) -> list[str]:
        return [voice["name"] for voice in self.ask("list")["voices"]]

    def entry(self, name: str) -> Any:
        (entry,) = [voice for voice in self.ask("list")["voices"] if voice["name"] == name]
        return entry


@pytest.fixture
def voices(caller: Any, speech_server: Any) -> Iterator[Voices]:
    """The suite's server, whose folder of voices is empty before and after."""
    yield Voices(caller)
    for path in speech_server.voices.iterdir():
        path.unlink()


@pytest.mark.parametrize("mode", RECORDINGS)
def test_a_voice_speaks_as_its_recordings_do(voices: Voices, pipeline: str, mode: str) -> None:
    added = voices.add("ann", **RECORDINGS[mode])
    assert (added["family"], added["mode"], added["replaced"]) == ("voxcpm2", mode, False)
    by_name = voices.speak(pipeline, VOICE="ann")
    assert np.array_equal(by_name, voices.speak(pipeline, **RECORDINGS[mode]))
    assert not np.array_equal(by_name, voices.speak(pipeline))


def test_a_voice_is_listed_and_shown_until_it_is_removed(voices: Voices, pipeline: str) -> None:
    assert voices.names() == ["default"]
    added = voices.add("ann", **RECORDINGS["continuation"])
    assert voices.names() == ["default", "ann"]
    shown = voices.ask("show", "ann")
    assert {**shown, "replaced": False} == added
    assert shown["prompt_text"] == "One, two (three)."
    assert set(shown["sources"]) == {"PROMPT_AUDIO"}
    assert voices.ask("show", "default")["mode"] == "built_in"
    assert voices.ask("remove", "ann") == {"name": "ann", "removed": True}
    assert voices.names() == ["default"]
    for command in ("show", "remove"):
        assert voices.ask(command, "ann").startswith("NAME: 'ann' is not known; known are")
    assert voices.refusal(pipeline, VOICE="ann").startswith("VOICE: 'ann' is not known; known are default and those")


def test_a_replaced_voice_is_heard_from_the_next_request_on(voices: Voices, pipeline: str) -> None:
    """S4."""
    expected = {audio: voices.speak(pipeline, REFERENCE_AUDIO=audio).tobytes() for audio in (ANN, BOB, EVE)}
    assert len(set(expected.values())) == 3
    versions = set()
    for audio in (ANN, BOB, ANN, EVE, BOB, BOB):
        versions.add(voices.add("ann", REFERENCE_AUDIO=audio)["version"])
        assert voices.speak(pipeline, VOICE="ann").tobytes() == expected[audio]
    assert voices.ask("remove", "ann")["removed"]
    voices.refusal(pipeline, VOICE="ann")
    voices.add("ann", REFERENCE_AUDIO=EVE)
    assert voices.speak(pipeline, VOICE="ann").tobytes() == expected[EVE]


def test_two_voices_of_one_recording_and_one_of_another_are_not_crossed(voices: Voices, pipeline: str) -> None:
    """S3: what is kept is kept by content, not by label."""
    for name, audio in (("ann", ANN), ("ann2", ANN), ("bob", BOB)):
        voices.add(name, REFERENCE_AUDIO=audio)
    ann, again, bob = (voices.speak(pipeline, VOICE=name) for name in ("ann", "ann2", "bob"))
    assert np.array_equal(ann, again)
    assert not np.array_equal(ann, bob)


def test_a_voice_that_is_replaced_while_it_is_spoken_in_is_heard_whole(voices: Voices, pipeline: str) -> None:
    """Both of its recordings and its text change at once: no request hears some of one and some of the other."""
    made_of = [
        {"REFERENCE_AUDIO": one, "PROMPT_AUDIO": other, "PROMPT_TEXT": text}
        for one, other, text in ((ANN, BOB, "One two."), (BOB, EVE, "Three."), (EVE, ANN, "Four five six seven."))
    ]
    whole = {voices.speak(pipeline, **recordings).tobytes() for recordings in made_of}
    voices.add("ann", **made_of[0])
    with ThreadPoolExecutor(2) as threads:
        adding = threads.submit(lambda: [voices.add("ann", **made_of[n % 3]) for n in range(60)])
        heard = []
        while not adding.done():
            heard.append(voices.speak(pipeline, VOICE="ann").tobytes())
        adding.result()
    assert len(heard) > 3
    assert set(heard) <= whole


def test_of_many_adds_of_one_name_one_wins_whole(voices: Voices, pipeline: str) -> None:
    expected = {voices.speak(pipeline, REFERENCE_AUDIO=audio).tobytes() for audio in (ANN, BOB, EVE)}
    with ThreadPoolExecutor(12) as threads:
        added = list(threads.map(lambda n: voices.add("ann", REFERENCE_AUDIO=(ANN, BOB, EVE)[n % 3]), range(36)))
    assert sum(not one["replaced"] for one in added) == 1
    assert voices.ask("show", "ann")["version"] in {one["version"] for one in added}
    assert voices.speak(pipeline, VOICE="ann").tobytes() in expected
    assert voices.names() == ["default", "ann"]


def test_streams_that_run_hear_nothing_of_an_add(voices: Voices, pipeline: str) -> None:
    """T4."""
    alone = voices.speak(pipeline)
    with ThreadPoolExecutor(1) as threads:
        adding = threads.submit(lambda: [voices.add(f"v{n}", REFERENCE_AUDIO=recording(100 + n)) for n in range(8)])
        while not adding.done():
            assert np.array_equal(voices.speak(pipeline), alone)
        adding.result()


def test_a_voices_stream_is_the_same_however_it_is_cut(voices: Voices, pipeline: str) -> None:
    """T5, S15."""
    voices.add("ann", **RECORDINGS["reference_continuation"])
    whole = voices.speak(pipeline, VOICE="ann", CHUNK_SCHEDULE=np.array([64], np.int32))
    assert np.array_equal(voices.speak(pipeline, VOICE="ann", CHUNK_SCHEDULE=np.array([1], np.int32)), whole)


@pytest.mark.parametrize("extra", [{"REFERENCE_AUDIO": BOB}, RECORDINGS["continuation"]], ids=lambda extra: min(extra))
def test_a_voice_and_a_recording_in_one_request_are_refused(
    voices: Voices, pipeline: str, extra: dict[str, Any]
) -> None:
    voices.add("ann", REFERENCE_AUDIO=ANN)
    assert voices.refusal(pipeline, VOICE="ann", **extra) == (
        f"VOICE: 'ann' cannot be given together with {min(extra)}: a voice has its own recording"
    )
    # The built-in voice has none.
    named, unnamed = voices.speak(pipeline, VOICE="default", **extra), voices.speak(pipeline, **extra)
    assert np.array_equal(named, unnamed)


def test_an_instruction_goes_with_a_reference_and_not_with_a_prompt(voices: Voices, pipeline: str) -> None:
    voices.add("ann", **RECORDINGS["reference"])
    voices.add("bob", **RECORDINGS["continuation"])
    voices.speak(pipeline, VOICE="ann", INSTRUCTION="Slowly.")
    assert voices.refusal(pipeline, VOICE="bob", INSTRUCTION="Slowly.").startswith("INSTRUCTION: cannot be given")


REFUSED = {
    "climbs_out": ("add", "../x", {"REFERENCE_AUDIO": ANN}, "NAME: '../x' is not a voice's name"),
    "of_unicode": ("add", "Zoë", {"REFERENCE_AUDIO": ANN}, "NAME: 'Zoë' is not a voice's name"),
    "too_long": ("add", "v" * 65, {"REFERENCE_AUDIO": ANN}, "NAME: has 65 characters, at most 64"),
    "empty": ("add", "", {"REFERENCE_AUDIO": ANN}, "NAME: '' is not a voice's name"),
    "removes_a_path": ("remove", "../../x", {}, "NAME: '../../x' is not a voice's name"),
    "shows_a_path": ("show", "/etc/passwd", {}, "NAME: '/etc/passwd' is not a voice's name"),
    "built_in": ("add", "default", {"REFERENCE_AUDIO": ANN}, "NAME: 'default' is a built-in voice"),
    "removes_built_in": ("remove", "default", {}, "NAME: 'default' is a built-in voice"),
    "no_name": ("add", None, {"REFERENCE_AUDIO": ANN}, "NAME: must be one string"),
    "no_recording": ("add", "x", {}, "REFERENCE_AUDIO: is missing"),
    "no_transcript": ("add", "x", {"PROMPT_AUDIO": ANN}, "PROMPT_TEXT: is missing"),
    "no_prompt": ("add", "x", {"REFERENCE_AUDIO": ANN, "PROMPT_TEXT": "One."}, "PROMPT_AUDIO: is missing"),
    "blank_transcript": ("add", "x", {"PROMPT_AUDIO": ANN, "PROMPT_TEXT": " "}, "PROMPT_TEXT: is blank"),
    "too_short": ("add", "x", {"REFERENCE_AUDIO": recording(200, 0.5)}, "REFERENCE_AUDIO: lasts 0.50 s; at least 1 s"),
    "no_audio": ("add", "x", {"REFERENCE_AUDIO": b"hello"}, "REFERENCE_AUDIO: is not an audio file"),
    "other_family": ("add", "x", {"REFERENCE_AUDIO": ANN, "FAMILY": "x"}, "FAMILY: 'x' is none of this server's"),
    "family_as_path": ("add", "x", {"REFERENCE_AUDIO": ANN, "FAMILY": "../x"}, "FAMILY: '../x' is none of"),
    "unknown_command": ("rename", "x", {}, "COMMAND: 'rename' is not allowed, only add, list, show, remove are"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(voices: Voices, speech_server: Any, case: str) -> None:
    """S6, S8."""
    command, name, inputs, says = REFUSED[case]
    assert str(voices.ask(command, name, **inputs)).startswith(says)
    assert voices.names() == ["default"]
    assert list(speech_server.voices.iterdir()) == []


def test_voices_that_do_not_fit_are_listed_with_the_reason_and_not_offered(
    voices: Voices, speech_server: Any, pipeline: str
) -> None:
    store = VoiceStore(speech_server.voices)
    fits = np.ones((3, *PATCH), np.float32)
    other_shape = np.ones((3, 4, 64), np.float32)
    store.put("fits", Voice("voxcpm2", "reference", {"REFERENCE_LATENTS": fits}), VoiceLimits())
    store.put("shape", Voice("voxcpm2", "reference", {"REFERENCE_LATENTS": other_shape}), VoiceLimits())
    store.put("family", Voice("another", "reference", {"REFERENCE_LATENTS": fits}), VoiceLimits())
    store.put("default", Voice("voxcpm2", "reference", {"REFERENCE_LATENTS": fits}), VoiceLimits())
    (speech_server.voices / "broken.safetensors").write_bytes(b"hello")
    (speech_server.voices / "notes.txt").write_text("Ask Ann.", encoding="utf-8")
    reasons = {
        "shape": "has REFERENCE_LATENTS of float32 [3, 4, 64]; the checkpoint needs float32 [n, 2, 8]",
        "family": "is of the family 'another', and this",
        "broken": "is not a voice file",
    }
    for name, reason in reasons.items():
        assert voices.ask("show", name)["problem"].startswith(reason)
        assert voices.refusal(pipeline, VOICE=name).startswith(f"VOICE: {name!r} cannot be used: it {reason}")
    assert voices.entry("notes.txt")["problem"].startswith("has a name that no voice can have")
    assert voices.entry("fits")["problem"] == ""
    voices.speak(pipeline, VOICE="fits")
    listed = voices.ask("list")["voices"]
    assert [one["problem"] for one in listed if one["name"] == "default"] == ["", "has the name of a built-in voice"]
    assert np.array_equal(voices.speak(pipeline, VOICE="default"), voices.speak(pipeline))
    assert "voice file broken.safetensors cannot be used: it is not a voice file" in speech_server.log_text()
    assert voices.ask("remove", "broken")["removed"]


Serving = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "voices"
    path.mkdir()
    return path


def test_a_restart_keeps_voices_and_a_new_server_has_those_of_its_folder(
    serving: Serving, calling: Calling, folder: Path
) -> None:
    with serving({}, voices=folder) as server, calling(server.grpc_url) as caller:
        Voices(caller).add("ann", REFERENCE_AUDIO=ANN)
        spoken = Voices(caller).speak("voxcpm2", VOICE="ann")
    (folder / "broken.safetensors").write_bytes(b"hello")
    with serving({"voices": {"writable": "false"}}, voices=folder) as server, calling(server.grpc_url) as caller:
        voices = Voices(caller)
        # Loaded, and complained of, before anybody asked.
        assert "voice file broken.safetensors cannot be used" in server.log_text()
        assert voices.names() == ["default", "ann", "broken"]
        for pipeline in ("voxcpm2", "voxcpm2_pipeline"):
            assert np.array_equal(voices.speak(pipeline, VOICE="ann"), spoken)
        for command in ("add", "remove"):
            told = voices.ask(command, "ann", REFERENCE_AUDIO=BOB)
            assert told == f"COMMAND: {command!r} is not allowed: the voices of this server are read-only"
        assert voices.ask("list")["writable"] is False
        # Another server with the same folder, or a copied file.
        voice = VoiceStore(folder).get("ann")
        assert voice is not None
        VoiceStore(folder).put("copy", voice, VoiceLimits())
        assert np.array_equal(voices.speak("voxcpm2", VOICE="copy"), spoken)


def test_a_folder_holds_no_more_voices_than_it_may(serving: Serving, calling: Calling, folder: Path) -> None:
    with serving({"voices": {"max_voices": 2}}, voices=folder) as server, calling(server.grpc_url) as caller:
        voices = Voices(caller)
        for name in ("a", "b", "a"):
            voices.add(name, REFERENCE_AUDIO=ANN)
        told = voices.ask("add", "c", REFERENCE_AUDIO=ANN)
        assert told == "NAME: there are 2 voices, at most 2 are allowed"
        assert voices.names() == ["default", "a", "b"]


def test_a_folder_that_cannot_be_written_is_told_without_its_path(
    serving: Serving, calling: Calling, folder: Path
) -> None:
    """S8."""
    with serving({}, voices=folder) as server, calling(server.grpc_url) as caller:
        folder.rmdir()
        folder.touch()
        voices = Voices(caller)
        told = voices.ask("add", "ann", REFERENCE_AUDIO=ANN)
        assert told in (f"the folder of voices cannot be written: {why}" for why in ("Not a directory", "File exists"))
        assert voices.names() == ["default"]
        assert voices.refusal("voxcpm2", VOICE="ann").startswith("VOICE: 'ann' is not known")
        # The first voice makes the folder.
        folder.unlink()
        voices.add("ann", REFERENCE_AUDIO=ANN)
        voices.speak("voxcpm2", VOICE="ann")


def test_a_voices_prompt_that_leaves_no_room_is_told_of_the_voice(voices: Voices) -> None:
    """In the ensemble; the front door cuts the text into pieces that have room beside the prompt."""
    voices.add("ann", PROMPT_AUDIO=ANN, PROMPT_TEXT="word " * 50)
    long = "word " * 45
    voices.speak("voxcpm2", VOICE="ann", TEXT=long)
    told = voices.refusal("voxcpm2_pipeline", VOICE="ann", TEXT=long)
    assert told.startswith("VOICE: 'ann' has a prompt whose text has ")


def test_a_checkpoints_own_voices_are_built_in(
    voices: Voices, speech_server: Any, serving: Serving, calling: Calling, tmp_path: Path
) -> None:
    voices.add("ann", **RECORDINGS["reference"])
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoints" / "voxcpm2_tiny")
    (checkpoint / "voices").mkdir()
    (speech_server.voices / "ann.safetensors").rename(checkpoint / "voices" / "ann.safetensors")
    with serving({}, folder=checkpoint, voices=tmp_path / "voices") as server, calling(server.grpc_url) as caller:
        here = Voices(caller)
        assert here.names() == ["default", "ann"]
        assert here.entry("ann")["mode"] == "built_in"
        for name in ("voxcpm2", "voxcpm2_pipeline"):
            assert np.array_equal(here.speak(name, VOICE="ann"), voices.speak(name, **RECORDINGS["reference"]))
            assert here.refusal(name, VOICE="bob").startswith("VOICE: 'bob' is not known; known are default, ann and")
            assert "cannot be given together with" in here.refusal(name, VOICE="ann", REFERENCE_AUDIO=BOB)
        for command in ("add", "remove"):
            answer = here.ask(command, "ann", **(RECORDINGS["reference"] if command == "add" else {}))
            assert answer == "NAME: 'ann' is a built-in voice, which can be neither replaced nor removed"
