"""An audio file that is written while the audio comes and appears under its name only when it is whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import soundfile

from triton_speech_client.errors import InvalidRequest
from triton_speech_client.speech import AudioChunk, file_format

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class AudioFile:
    """Use it in a ``with``: leaving it by an error, or by Ctrl-C, leaves no file and an older one untouched.

    Raises ``InvalidRequest`` at once where the path cannot become an audio file, ``OSError`` while writing.
    """

    def __init__(self, path: Path) -> None:
        self._format = file_format(path)
        if path.is_dir() or not path.parent.is_dir():
            problem = "is a folder" if path.is_dir() else "lies in a folder that does not exist"
            raise InvalidRequest("path", f"{str(path)!r} {problem}")
        self.path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._file: soundfile.SoundFile | None = None

    def write(self, chunk: AudioChunk) -> None:
        """Appends a chunk; the first one sets the sample rate."""
        container, subtype = self._format
        try:
            if self._file is None:
                self._file = soundfile.SoundFile(
                    self._part, "w", chunk.sample_rate, channels=1, format=container, subtype=subtype
                )
            self._file.write(chunk.samples)
        except soundfile.LibsndfileError as e:
            raise OSError(f"{str(self.path)!r} cannot be written: {e.error_string}") from e

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._file is not None:
                self._file.close()
                if kind is None:
                    self._part.replace(self.path)
        finally:  # also where Ctrl-C came between the making of the file and its assignment
            self._part.unlink(missing_ok=True)
