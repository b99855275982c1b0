"""The folder of stored voices: one file each, replaced as a whole, looked at anew for every request."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ..errors import invalid
from .name import check_name, is_name
from .voice import LENGTH_BYTES, Voice, VoiceFileError, header_bytes

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
MAX_FILE_BYTES = 64 * 2**20
_PART_SUFFIX = ".part"
_STALE_PART_SECONDS = 3600.0

Found: TypeAlias = "Voice | VoiceFileError"


@dataclass(frozen=True)
class VoiceLimits:
    """What a folder of voices may hold."""

    max_voices: int = 1000
    max_bytes: int = 2**30


class _Identity(NamedTuple):
    """Tells one content of a file from the next. The header, which holds the version, is read each time: times and
    inode numbers alone may repeat, and a network folder may report old ones."""

    inode: int
    size: int
    changed_ns: int
    header: bytes


class VoiceStore:
    """Voices by name, below one folder. Thread-safe, and any number of processes may share the folder.

    Voices that were used are kept in memory up to ``keep_bytes``; each use checks that the file is still the same, so
    that a voice which was replaced or removed is not heard again.
    """

    def __init__(self, folder: Path, keep_bytes: int = 64 * 2**20) -> None:
        self.folder = folder
        self._keep_bytes = keep_bytes
        self._kept: OrderedDict[str, tuple[_Identity, Found]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> Voice | None:
        """The voice of this name as it is now, None when there is none.

        Raises:
            SpeechError: INVALID_ARG, it cannot be a voice's name.
            VoiceFileError: there is a file, and it cannot be used.
        """
        found = self._look(self._path(name).name)
        if isinstance(found, VoiceFileError):
            raise VoiceFileError(*found.args) from found
        return found

    def scan(self) -> Iterator[tuple[str, Found]]:
        """All that lies in the folder, with its name; what no voice can be called has the whole name of its file."""
        try:
            files = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return
        except OSError as error:
            log.error("the folder of voices cannot be read: %s", error)
            return
        for file in sorted(files, key=lambda file: file.removesuffix(SUFFIX)):
            if (found := self._look(file)) is not None:
                yield _voice_name(file) or _printable(file), found

    def put(self, name: str, voice: Voice, limits: VoiceLimits) -> bool:
        """Writes a voice. Whoever reads meanwhile gets the old one or the new one, whole. Whether there was an old one.

        Raises:
            SpeechError: INVALID_ARG, it cannot be a voice's name, or there is no room.
            OSError: the folder cannot be written.
        """
        path = self._path(name)
        data = voice.to_bytes()
        sizes = self._sizes()
        replaces = sizes.pop(path.name, None) is not None
        if len(sizes) >= limits.max_voices:
            raise invalid("NAME", f"there are {len(sizes)} voices, at most {limits.max_voices} are allowed")
        if sum(sizes.values()) + len(data) > limits.max_bytes:
            raise invalid("NAME", f"all voices together would have more than {limits.max_bytes} bytes")
        folder = path.parent
        folder.mkdir(parents=True, exist_ok=True)
        self._sweep(folder)
        part = folder / f".{name}.{uuid.uuid4().hex}{_PART_SUFFIX}"
        try:
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        _sync(folder)
        return replaces

    def remove(self, name: str) -> bool:
        """Removes a voice, usable or not. Whether there was one.

        Raises:
            SpeechError: INVALID_ARG, it cannot be a voice's name.
            OSError: the folder cannot be written.
        """
        path = self._path(name)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        _sync(path.parent)
        return True

    def _sizes(self) -> dict[str, int]:
        """Bytes of each voice's file, by the file's name."""
        sizes = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                # Gone meanwhile, or a link that leads nowhere: no voice, and nobody else's harm.
                with contextlib.suppress(OSError):
                    if _voice_name(entry.name):
                        sizes[entry.name] = entry.stat().st_size
        return sizes

    def _path(self, name: str) -> Path:
        # The folder may be a link to one that is not there yet.
        return Path(os.path.realpath(self.folder)) / f"{check_name('NAME', name)}{SUFFIX}"

    def _look(self, file: str) -> Found | None:
        """What a file of the folder holds now; None when it is gone."""
        try:
            with _open_regular(self.folder / file) as descriptor:
                identity = _identity(file, descriptor)
                if (kept := self._recall(file, identity)) is not None:
                    return kept
                found = _read(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            self._forget(file)
            return None
        except VoiceFileError as error:
            identity, found = _Identity(0, 0, 0, str(error).encode()), error
            if (kept := self._recall(file, identity)) is not None:
                return kept
        except OSError as error:
            log.error("voice file %s cannot be read: %s", _printable(file), error)
            return VoiceFileError("cannot be read")
        if isinstance(found, VoiceFileError):
            log.warning("voice file %s cannot be used: it %s", _printable(file), found)
        self._keep(file, identity, found)
        return found

    def _recall(self, file: str, identity: _Identity) -> Found | None:
        with self._lock:
            kept = self._kept.get(file)
            if kept is None or kept[0] != identity:
                return None
            self._kept.move_to_end(file)
            return kept[1]

    def _keep(self, file: str, identity: _Identity, found: Found) -> None:
        with self._lock:
            self._kept[file] = (identity, found)
            self._kept.move_to_end(file)
            while len(self._kept) > 1 and sum(one.size for one, _ in self._kept.values()) > self._keep_bytes:
                self._kept.popitem(last=False)

    def _forget(self, file: str) -> None:
        with self._lock:
            self._kept.pop(file, None)

    def _sweep(self, folder: Path) -> None:
        """Removes what writers that were killed have left."""
        for part in folder.glob(f".*{_PART_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - part.stat().st_mtime > _STALE_PART_SECONDS:
                    part.unlink()


@contextlib.contextmanager
def _open_regular(path: Path) -> Iterator[int]:
    # Without waiting: a pipe in the folder would hold the reader for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise VoiceFileError("is not a file")
        yield descriptor
    finally:
        os.close(descriptor)


def _identity(file: str, descriptor: int) -> _Identity:
    if _voice_name(file) is None:
        raise VoiceFileError(f"has a name that no voice can have; a voice's file is NAME{SUFFIX}")
    status = os.fstat(descriptor)
    if status.st_size > MAX_FILE_BYTES:
        raise VoiceFileError(f"has {status.st_size} bytes; at most {MAX_FILE_BYTES} are read")
    header = os.pread(descriptor, header_bytes(os.pread(descriptor, LENGTH_BYTES, 0)), 0)
    return _Identity(status.st_ino, status.st_size, status.st_mtime_ns, header)


def _read(descriptor: int) -> Found:
    parts, at = [], 0
    while at <= MAX_FILE_BYTES and (part := os.pread(descriptor, 2**20, at)):
        parts.append(part)
        at += len(part)
    try:
        return Voice.from_bytes(b"".join(parts))
    except VoiceFileError as error:
        return error


def _voice_name(file: str) -> str | None:
    """The name of the voice that a file of this name holds."""
    name = file.removesuffix(SUFFIX)
    return name if name != file and is_name(name) else None


def _printable(file: str) -> str:
    return os.fsencode(file).decode("utf-8", "backslashreplace")


def _sync(folder: Path) -> None:
    """Makes a change of the folder itself last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
