"""Everything that can be set, in one object; API keys come from a small file."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)


class ApiKey(BaseModel):
    """A caller who is let in, and what is allowed to him. None is no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Stands in metrics and logs in place of the key."""
    key: SecretStr | None = None
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """The key's SHA-256 in hexadecimal, for files that should hold no key."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    characters_per_minute: int | None = Field(default=None, ge=1)
    max_concurrent: int | None = Field(default=None, ge=1)
    """Utterances at once."""
    manage_voices: bool = False
    """Whether voices, which all callers share, may be added and removed."""

    @model_validator(mode="after")
    def _has_one_secret(self) -> ApiKey:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("one of key and sha256 is needed")
        if self.key is not None and len(self.key.get_secret_value()) < 8:
            raise ValueError("key is shorter than 8 characters")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key, 32 bytes."""
        if self.key is None:
            return bytes.fromhex(self.sha256 or "")
        return hashlib.sha256(self.key.get_secret_value().encode()).digest()


class GatewaySettings(BaseModel):
    """What ``triton-speech gateway`` is told on its command line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    triton: str = "127.0.0.1:8001"
    """``host:port`` of Triton's gRPC."""
    model: str = "voxcpm2"
    """The pipeline behind the aliases; the first one that the server offers where this is not among them."""
    model_aliases: tuple[str, ...] = OPENAI_MODELS
    voice_aliases: tuple[str, ...] = OPENAI_VOICES
    """Names that stand for the default voice unless a voice of that name is stored."""
    keys: tuple[ApiKey, ...] = ()
    """Empty lets everybody in."""
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024)
    max_characters: int = Field(default=4096, ge=1)
    """Of one request, or of one utterance of live text."""
    max_concurrent: int = Field(default=256, ge=1)
    """Utterances at once, of all callers together."""
    max_sessions: int = Field(default=256, ge=1)
    """Connections for live text."""
    body_seconds: float = Field(default=60.0, gt=0)
    """How long a request's body may take to arrive."""
    stall_seconds: float = Field(default=60.0, gt=0)
    """A reader who takes nothing for so long is left."""
    idle_seconds: float = Field(default=300.0, gt=0)
    """A connection for live text that is silent for so long is closed."""
    cors_origins: tuple[str, ...] = ()
    """Web sites that may call from a browser, besides the gateway's own page."""
    reference_urls: bool = False
    """Whether recordings may be given as https URLs."""


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The API keys of a TOML or JSON file, told apart by the suffix: ``keys``, a list of tables.

    Raises:
        ValueError: names the file, the entry and the field; never a key.
        OSError: where the file cannot be read.
    """
    try:
        content = _load(path)
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is not {path.suffix[1:].upper()}") from error
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path}: has no list 'keys'")
    try:
        keys = tuple(ApiKey.model_validate(entry) for entry in entries)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "entry"
        raise ValueError(f"{path}: keys: {where}: {first['msg']}") from None
    for field in ("name", "digest"):
        if len({getattr(key, field) for key in keys}) < len(keys):
            raise ValueError(f"{path}: keys: two have the same {'name' if field == 'name' else 'key'}")
    return keys


def _load(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix == ".toml":
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        return tomllib.loads(text)
    raise OSError(f"{path}: ends in {path.suffix!r}; known are .toml and .json")
