"""The folder of checkpoints: revisions side by side, and a link for each name to the one in use.

DIR/NAME -> .pulled/NAME/REVISION      what a server finds
DIR/.pulled/NAME/REVISION/             complete and checked, with its manifest; never changed again
DIR/.pulled/NAME/REVISION.partial/     what has arrived of one that is on its way
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from triton_speech.pull.download import download
from triton_speech.pull.errors import PullError
from triton_speech.pull.manifest import FILE_NAME, Manifest, check_name, read_manifest, sha256_of
from triton_speech.pull.source import Source

_PULLED = ".pulled"
_SPARE_BYTES = 64 * 2**20


class Store:
    """The revisions of one checkpoint in ``folder``, under ``name``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.link = folder / check_name("--name", name)
        self._revisions = folder / _PULLED / name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with this checkpoint: several servers that start at once may share the folder."""
        self._revisions.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._revisions / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def current(self) -> Manifest | None:
        """What the link points to, None where there is no link."""
        return self._manifest(self.link) if self.link.is_symlink() else None

    def find(self, revision: str) -> Manifest | None:
        """The revision if it is here, complete."""
        return self._manifest(self._revisions / revision)

    def check(self, revision: str, thorough: bool) -> str:
        """What is wrong with a revision that is here; empty where nothing is. ``thorough`` reads all of it."""
        folder, manifest = self._revisions / revision, self.find(revision)
        if manifest is None:
            return "is not here"
        for name, entry in manifest.files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != entry.bytes:
                return f"{name} is missing or has another size"
            if thorough and sha256_of(path) != entry.sha256:
                return f"{name} has another SHA-256"
        return ""

    def fetch(self, source: Source, manifest: Manifest, say: Callable[[str], None]) -> None:
        """Brings a revision here, in place of one of the same name that differs or is damaged.

        Raises:
            PullError: it cannot be had, or there is too little room.
        """
        folder = self._revisions / manifest.revision
        partial = self._revisions / f"{manifest.revision}.partial"
        partial.mkdir(parents=True, exist_ok=True)
        have = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
        need, free = manifest.total_bytes - have, shutil.disk_usage(partial).free
        if need + _SPARE_BYTES > free:
            raise PullError(f"{self.link.parent} has room for {free >> 20} MiB, {need >> 20} MiB are needed")
        for name, entry in manifest.files.items():
            download(source, name, entry, partial / name, say)
        for path in partial.rglob("*"):
            if path.is_file() and path.relative_to(partial).as_posix() not in manifest.files:
                path.unlink()
        (partial / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)

    def use(self, revision: str) -> None:
        """Points the link to a revision, in one step: a server that starts meanwhile finds the old one or the new.

        Raises:
            PullError: something that was not pulled has the name.
        """
        if self.link.exists() and not self.link.is_symlink():
            raise PullError(f"{self.link} is there and was not pulled; choose another --name or move it away")
        fresh = self._revisions / ".link"
        fresh.unlink(missing_ok=True)
        # Relative, so that the folder may be mounted elsewhere.
        fresh.symlink_to(Path(_PULLED) / self.link.name / revision)
        fresh.replace(self.link)

    def prune(self, revision: str) -> list[str]:
        """Removes all other revisions, complete or not; their names."""
        others = [path for path in self._revisions.iterdir() if path.is_dir() and path.name != revision]
        for path in others:
            shutil.rmtree(path)
        return [path.name for path in others]

    @staticmethod
    def _manifest(folder: Path) -> Manifest | None:
        path = folder / FILE_NAME
        try:
            return read_manifest(path.read_bytes(), str(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
