"""The folder of voices: replaced as a whole, looked at anew each time, and safe from what else lies in it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triton_speech.errors import SpeechError
from triton_speech.voices import store as store_module
from triton_speech.voices.store import VoiceLimits, VoiceStore
from triton_speech.voices.voice import Voice, VoiceFileError

Make = Callable[..., Voice]
LIMITS = VoiceLimits()


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path / "voices")


def fill(voice: Voice | None) -> float:
    """The number that all of a test voice's latents have."""
    assert voice is not None
    values = np.unique(voice.tensors["REFERENCE_LATENTS"])
    assert len(values) == 1
    return float(values[0])


def put(store: VoiceStore, name: str, voice: Voice) -> bool:
    return store.put(name, voice, LIMITS)


def problem(store: VoiceStore, name: str) -> str:
    found = dict(store.scan())[name]
    assert isinstance(found, VoiceFileError)
    return str(found)


def test_a_voice_is_there_from_its_writing_to_its_removal(store: VoiceStore, make_voice: Make) -> None:
    assert store.get("ann") is None
    assert dict(store.scan()) == {}
    assert put(store, "ann", make_voice(1)) is False
    assert fill(store.get("ann")) == 1
    assert list(dict(store.scan())) == ["ann"]
    assert store.remove("ann")
    assert store.get("ann") is None
    assert not store.remove("ann")


def test_voices_are_listed_in_the_order_of_their_names(store: VoiceStore, make_voice: Make) -> None:
    for name in ("b", "a-b", "B", "a"):
        put(store, name, make_voice())
    assert list(dict(store.scan())) == ["B", "a", "a-b", "b"]


def test_an_unchanged_voice_is_read_once(store: VoiceStore, make_voice: Make) -> None:
    put(store, "ann", make_voice())
    assert store.get("ann") is store.get("ann")


def test_a_replaced_voice_is_not_heard_again(store: VoiceStore, make_voice: Make) -> None:
    """S4: the voice is deleted and uploaded again, the old one speaks."""
    other_process = VoiceStore(store.folder)
    for number in range(20):
        # Same size, and often the same inode and the same tick of the file system's clock.
        put(other_process, "ann", make_voice(number))
        assert fill(store.get("ann")) == number
        other_process.remove("ann")
        assert store.get("ann") is None


def test_a_new_version_is_seen_where_inode_size_and_time_are_those_of_the_old(
    store: VoiceStore, make_voice: Make
) -> None:
    put(store, "ann", make_voice(1))
    path = store.folder / "ann.safetensors"
    before = path.stat()
    assert fill(store.get("ann")) == 1
    path.write_bytes(make_voice(2).to_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    assert fill(store.get("ann")) == 2


def test_whoever_holds_a_voice_keeps_it_whole(store: VoiceStore, make_voice: Make) -> None:
    put(store, "ann", make_voice(1))
    held = store.get("ann")
    put(store, "ann", make_voice(2))
    assert fill(held) == 1


def write_for_ever(folder: Path, make: Any) -> None:
    store, number = VoiceStore(folder), 0
    while True:
        number += 1
        put(store, "ann", make(number, frames=500))


def test_a_writer_that_is_killed_leaves_one_voice_whole(store: VoiceStore, make_voice: Make) -> None:
    fork = multiprocessing.get_context("fork")
    put(store, "ann", make_voice(0, frames=500))
    for _ in range(10):
        writer = fork.Process(target=write_for_ever, args=(store.folder, make_voice))
        writer.start()
        time.sleep(0.03)
        writer.kill()
        writer.join()
        fill(store.get("ann"))
        assert list(dict(store.scan())) == ["ann"]


def test_a_write_that_fails_leaves_the_old_voice_and_nothing_else(
    store: VoiceStore, make_voice: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "ann", make_voice(1))

    def disk_full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        put(store, "ann", make_voice(2))
    assert fill(store.get("ann")) == 1
    assert os.listdir(store.folder) == ["ann.safetensors"]  # noqa: PTH208


def test_what_killed_writers_left_is_cleared_away_later(store: VoiceStore, make_voice: Make) -> None:
    store.folder.mkdir()
    old, fresh = store.folder / ".ann.1.part", store.folder / ".ann.2.part"
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    put(store, "bob", make_voice())
    assert not old.exists()
    assert fresh.exists()
    assert list(dict(store.scan())) == ["bob"]


def test_of_many_writers_of_one_name_one_wins_whole(store: VoiceStore, make_voice: Make) -> None:
    stop = threading.Event()
    seen = set()

    def read() -> None:
        while not stop.is_set():
            seen.add(fill(reader.get("ann")))

    reader = VoiceStore(store.folder)
    put(store, "ann", make_voice(-1, frames=200))
    with ThreadPoolExecutor(9) as threads:
        reading = threads.submit(read)
        list(threads.map(lambda n: put(VoiceStore(store.folder), "ann", make_voice(n, frames=200)), range(60)))
        stop.set()
        reading.result(10)
    assert seen <= set(range(-1, 60))
    assert fill(reader.get("ann")) in range(60)


@pytest.mark.parametrize("name", ["../x", "a/b", "", "ä", "v" * 65, "x\n"])
def test_bad_names_reach_no_file(store: VoiceStore, make_voice: Make, name: str) -> None:
    """S6."""
    for use in (store.get, store.remove, lambda name: put(store, name, make_voice())):
        with pytest.raises(SpeechError, match=r"^NAME: "):
            use(name)
    assert not store.folder.exists()
    assert os.listdir(store.folder.parent) == []  # noqa: PTH208


def test_the_longest_name_fits(store: VoiceStore, make_voice: Make) -> None:
    put(store, "v" * 64, make_voice(1))
    assert fill(store.get("v" * 64)) == 1


def test_foreign_and_broken_files_are_reported_and_nothing_stops(
    store: VoiceStore, make_voice: Make, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, "good", make_voice(1))
    folder, whole = store.folder, make_voice().to_bytes()
    (folder / "cut.safetensors").write_bytes(whole[:-1])
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "notes.txt").write_text("Ask Ann.", encoding="utf-8")
    (folder / "a b.safetensors").write_bytes(whole)
    (folder / os.fsdecode(b"\xff.safetensors")).write_bytes(whole)
    (folder / "folder.safetensors").mkdir()
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "nowhere.safetensors").symlink_to(folder / "gone")
    (folder / ".hidden").write_bytes(b"x")
    with (folder / "big.safetensors").open("wb") as file:
        file.truncate(2**40)
    with caplog.at_level(logging.WARNING):
        found = dict(store.scan())
    assert fill(found["good"]) == 1
    assert {name: str(error) for name, error in found.items() if name != "good"} == {
        "cut": "is damaged or cut off",
        "empty": "is not a voice file",
        "notes.txt": "has a name that no voice can have; a voice's file is NAME.safetensors",
        "a b.safetensors": "has a name that no voice can have; a voice's file is NAME.safetensors",
        "\\xff.safetensors": "has a name that no voice can have; a voice's file is NAME.safetensors",
        "folder": "is not a file",
        "pipe": "is not a file",
        "big": f"has {2**40} bytes; at most {2**26} are read",
    }
    assert len(caplog.records) == 8
    assert "voice file cut.safetensors cannot be used: it is damaged or cut off" in caplog.text
    with pytest.raises(VoiceFileError, match="is not a file"):
        store.get("pipe")


def test_a_broken_file_is_logged_once_and_heals(
    store: VoiceStore, make_voice: Make, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, "ann", make_voice(1))
    (store.folder / "ann.safetensors").write_bytes(b"broken")
    for _ in range(3):
        with pytest.raises(VoiceFileError, match="is not a voice file"):
            store.get("ann")
    assert len(caplog.records) == 1
    put(store, "ann", make_voice(2))
    assert fill(store.get("ann")) == 2


def test_a_file_that_may_not_be_read_is_reported(store: VoiceStore, make_voice: Make) -> None:
    put(store, "ann", make_voice())
    (store.folder / "ann.safetensors").unlink()
    (store.folder / "ann.safetensors").symlink_to("ann.safetensors")
    assert problem(store, "ann") == "cannot be read"
    assert store.remove("ann")


def test_the_number_of_voices_is_limited(store: VoiceStore, make_voice: Make) -> None:
    limits = VoiceLimits(max_voices=2)
    for name in ("a", "b"):
        store.put(name, make_voice(), limits)
    with pytest.raises(SpeechError, match="there are 2 voices, at most 2 are allowed"):
        store.put("c", make_voice(), limits)
    assert store.put("a", make_voice(2), limits) is True
    store.remove("b")
    store.put("c", make_voice(), limits)


def test_the_bytes_of_all_voices_are_limited(store: VoiceStore, make_voice: Make) -> None:
    size = len(make_voice().to_bytes())
    limits = VoiceLimits(max_bytes=2 * size)
    for name in ("a", "b", "a"):
        store.put(name, make_voice(), limits)
    with pytest.raises(SpeechError, match=f"more than {2 * size} bytes"):
        store.put("c", make_voice(), limits)


def test_memory_is_bounded_and_what_was_forgotten_is_read_again(tmp_path: Path, make_voice: Make) -> None:
    size = len(make_voice().to_bytes())
    store = VoiceStore(tmp_path, keep_bytes=3 * size)
    for name in "abcdef":
        put(store, name, make_voice(ord(name)))
    first = {name: store.get(name) for name in "abcdef"}
    assert store.get("f") is first["f"]
    assert store.get("a") is not first["a"]
    assert fill(store.get("a")) == ord("a")


def test_a_folder_that_is_a_link_to_nothing_is_made(tmp_path: Path, make_voice: Make) -> None:
    """As in the run directory of a server whose first voice this is."""
    (tmp_path / "link").symlink_to(tmp_path / "voices")
    store = VoiceStore(tmp_path / "link")
    assert dict(store.scan()) == {}
    put(store, "ann", make_voice(1))
    assert (tmp_path / "voices" / "ann.safetensors").is_file()
    assert fill(store.get("ann")) == 1


def test_a_folder_that_is_a_file_holds_no_voice(tmp_path: Path, make_voice: Make) -> None:
    (tmp_path / "voices").touch()
    store = VoiceStore(tmp_path / "voices")
    assert dict(store.scan()) == {}
    assert store.get("ann") is None
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        put(store, "ann", make_voice())


def test_a_link_that_leads_to_itself_keeps_nobody_from_adding(store: VoiceStore, make_voice: Make) -> None:
    store.folder.mkdir(parents=True, exist_ok=True)
    (store.folder / "loop.safetensors").symlink_to("loop.safetensors")
    put(store, "ann", make_voice())
    assert store.get("ann") is not None
    assert problem(store, "loop")
