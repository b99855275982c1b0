"""One file, whole and checked: goes on where a transfer broke off, and tries again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from triton_speech.pull.errors import PullError
from triton_speech.pull.manifest import FileEntry, sha256_of
from triton_speech.pull.source import InterruptedTransferError, Source

ATTEMPTS = 6
"""In a row that bring nothing; then a download gives up, and the next run goes on from there."""
_FIRST_SECONDS, _LONGEST_SECONDS = 0.5, 30.0
_READ_BYTES = 2**20


def download(
    source: Source,
    name: str,
    entry: FileEntry,
    target: Path,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Brings ``name`` to ``target``, which exists afterwards only with the right checksum.

    What has arrived waits in ``target`` with ``.part`` after its name, for the next attempt or the next run.

    Raises:
        PullError: it cannot be had, or what comes has another checksum.
    """
    if target.is_file() and target.stat().st_size == entry.bytes and sha256_of(target) == entry.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    fruitless, wrong = 0, 0
    while True:
        before = _size(part)
        try:
            if before < entry.bytes or not part.exists():
                _go_on(source, name, entry, part, before)
        except InterruptedTransferError as error:
            # A server that sends every time from the start may bring bytes and still no progress.
            fruitless = 0 if _size(part) > before else fruitless + 1
            if fruitless >= ATTEMPTS:
                raise PullError(f"{error}; gave up after {ATTEMPTS} attempts, what has arrived is kept") from error
            wait = min(_FIRST_SECONDS * 2**fruitless, _LONGEST_SECONDS)
            say(f"{error}; going on in {wait:g} s from byte {_size(part)}")
            sleep(wait)
            continue
        if _size(part) == entry.bytes and sha256_of(part) == entry.sha256:
            part.replace(target)
            return
        # The beginning may be that of another version: once more, from the start.
        part.unlink(missing_ok=True)
        wrong += 1
        if wrong > 1 or before == 0:
            raise PullError(f"{source.base}/{name} is not the file of the manifest: its size or SHA-256 differs")
        say(f"{name}: wrong checksum, from the start again")


def _go_on(source: Source, name: str, entry: FileEntry, part: Path, offset: int) -> None:
    with part.open("r+b" if part.exists() else "wb", buffering=0) as file, source.open(name, offset) as (stream, begin):
        file.truncate(begin)
        file.seek(begin)
        size = begin
        # One byte more than there should be tells a file that is too long.
        while size <= entry.bytes and (block := stream.read(min(_READ_BYTES, entry.bytes + 1 - size))):
            _write(file, block, part)
            size += len(block)
        os.fsync(file.fileno())
    if size < entry.bytes:
        raise InterruptedTransferError(f"{source.base}/{name} broke off")


def _write(file: FileIO, block: bytes, part: Path) -> None:
    try:
        while block:
            block = block[file.write(block) :]
    except OSError as error:
        # Not the transfer's fault, so no reason to try again.
        raise PullError(f"{part} cannot be written: {error.strerror}") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
