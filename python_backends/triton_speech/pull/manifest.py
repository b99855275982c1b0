"""The manifest of a checkpoint: which files one revision has, with their sizes and checksums."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from triton_speech.pull.errors import PullError

FILE_NAME = "manifest.json"
MOST_BYTES = 4 * 2**20
"""Of a manifest that comes over the network."""
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"
_READ_BYTES = 2**20


class FileEntry(BaseModel):
    """A file: SHA-256 in hexadecimal, and its size in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class Manifest(BaseModel):
    """All files of one revision, by their path in the checkpoint (``/`` between folders)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    revision: str = Field(pattern=f"^{_NAME}$")
    files: dict[str, FileEntry] = Field(min_length=1)

    @field_validator("files")
    @classmethod
    def _stays_inside(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        for name in files:
            parts = name.split("/")
            if "\\" in name or "\0" in name or name == FILE_NAME or any(part in ("", ".", "..") for part in parts):
                raise ValueError(f"{name!r} is not the path of a file inside the checkpoint")
        return files

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())

    def to_json(self) -> str:
        return json.dumps(self.model_dump(), indent=2) + "\n"


def read_manifest(text: str | bytes, where: str) -> Manifest:
    """The manifest in ``text``, which came from ``where``.

    Raises:
        PullError: it is none; names the place, the field and what is allowed.
    """
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "manifest"
        raise PullError(f"{where}: {field}: {first['msg']}") from None


def make_manifest(folder: Path, revision: str) -> Manifest:
    """The manifest of the files in ``folder``; names that begin with a dot are left out.

    Raises:
        PullError: ``folder`` has no file, or ``revision`` is no name.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        name = PurePosixPath(path.relative_to(folder)).as_posix()
        if path.is_file() and name != FILE_NAME and not any(part.startswith(".") for part in name.split("/")):
            files[name] = {"sha256": sha256_of(path), "bytes": path.stat().st_size}
    return read_manifest(json.dumps({"revision": revision, "files": files}), str(folder))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def check_name(option: str, name: str) -> str:
    """``name`` if it can be the name of a folder.

    Raises:
        PullError: it cannot; names the option.
    """
    if not re.fullmatch(_NAME, name):
        raise PullError(f"{option} {name!r} must be 1 to 100 of A-Z a-z 0-9 . _ - and not begin with . or -")
    return name
