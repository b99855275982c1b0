"""A stored voice, and the bytes of the file that it is kept in: safetensors with metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

Array = npt.NDArray[Any]

FORMAT = "triton-speech-voice"
FORMAT_VERSION = "1"
MAX_HEADER_BYTES = 2**18
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, which is JSON."""


class VoiceFileError(ValueError):
    """A file is not a voice that can be used; its text completes the sentence "the voice cannot be used: it ..."."""


@dataclass(frozen=True)
class Voice:
    """What a family's talker is given to speak in somebody's voice, computed once from recordings.

    Which tensors and modes there are is for the family to say. ``created`` is UTC in ISO 8601, ``sources`` has the
    SHA-256 of each recording's file, hexadecimal, by the field that it came in.
    """

    family: str
    mode: str
    tensors: Mapping[str, Array]
    prompt_text: str | None = None
    created: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def version(self) -> str:
        """A hash of all of the above: another voice of the same name has another version."""
        digest = hashlib.blake2b(json.dumps(self._metadata, sort_keys=True).encode(), digest_size=16)
        for name in sorted(self.tensors):
            tensor = self.tensors[name]
            digest.update(f"|{name}|{tensor.dtype.str}|{tensor.shape}|".encode())
            digest.update(np.ascontiguousarray(tensor).tobytes())
        return digest.hexdigest()

    @property
    def frames(self) -> dict[str, int]:
        """Length of each tensor's first dimension."""
        return {name: int(tensor.shape[0]) if tensor.ndim else 0 for name, tensor in sorted(self.tensors.items())}

    def to_bytes(self) -> bytes:
        """The file's content."""
        arrays = {name: np.ascontiguousarray(tensor) for name, tensor in self.tensors.items()}
        return bytes(safetensors.numpy.save(arrays, self._signed))

    @classmethod
    def from_bytes(cls, data: bytes) -> Voice:
        """Reads a file's content; the tensors are read-only.

        Raises:
            VoiceFileError: it is no voice, or not the one that was written.
        """
        metadata = _metadata(data)
        if metadata.get("format") != FORMAT:
            raise VoiceFileError("is not a voice file")
        if metadata.get("format_version") != FORMAT_VERSION:
            raise VoiceFileError(
                f"has the format version {metadata.get('format_version')!r}; this release reads {FORMAT_VERSION}"
            )
        try:
            tensors = safetensors.numpy.load(data)
            sources = json.loads(metadata["sources"])
            voice = cls(
                metadata["family"],
                metadata["mode"],
                MappingProxyType(tensors),
                metadata.get("prompt_text"),
                metadata["created"],
                MappingProxyType({str(name): str(value) for name, value in sources.items()}),
            )
        except (SafetensorError, KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise VoiceFileError("is damaged or cut off") from error
        if metadata != voice._signed:
            raise VoiceFileError("was changed after it was written: its content does not fit its version")
        for tensor in tensors.values():
            tensor.flags.writeable = False
        return voice

    @property
    def _signed(self) -> dict[str, str]:
        return {**self._metadata, "version": self.version}

    @property
    def _metadata(self) -> dict[str, str]:
        metadata = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "family": self.family,
            "mode": self.mode,
            "created": self.created,
            "frames": json.dumps(self.frames),
            "sources": json.dumps(dict(self.sources), sort_keys=True),
        }
        return metadata if self.prompt_text is None else {**metadata, "prompt_text": self.prompt_text}


def header_bytes(beginning: bytes) -> int:
    """Length of the header, with the number that announces it, of a file that begins with these bytes.

    Raises:
        VoiceFileError: the file cannot be a voice.
    """
    length = int.from_bytes(beginning[:LENGTH_BYTES], "little")
    if len(beginning) < LENGTH_BYTES or not 0 < length <= MAX_HEADER_BYTES:
        raise VoiceFileError("is not a voice file")
    return LENGTH_BYTES + length


def _metadata(data: bytes) -> dict[str, str]:
    end = header_bytes(data)
    try:
        header = json.loads(data[LENGTH_BYTES:end])
        return dict(header["__metadata__"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise VoiceFileError("is not a voice file" if end <= len(data) else "is damaged or cut off") from error
