"""Playing audio while it comes, with what the machine has: sounddevice, aplay or ffplay."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from triton_speech_client.errors import SpeechClientError
from triton_speech_client.speech import AudioChunk

Play: TypeAlias = "Callable[[AudioChunk], None]"
Player: TypeAlias = "Callable[[], AbstractContextManager[Play]]"

# Raw mono PCM, 16 bits little-endian, on the standard input.
_PROGRAMS = {
    "aplay": "aplay -q -t raw -f S16_LE -c 1 -r {rate} -",
    "ffplay": "ffplay -nodisp -autoexit -loglevel error -f s16le -ar {rate} -",
}

_PLAYED = "exit code 0"


def find_player() -> Player:
    """Something that plays int16 chunks; its ``with`` ends when the last sample was heard.

    Raises ``SpeechClientError`` where the machine has nothing to play with.
    """
    with contextlib.suppress(ImportError, OSError):  # OSError: sounddevice without the PortAudio library
        import sounddevice

        return lambda: _through_sounddevice(sounddevice)
    for program, command in _PROGRAMS.items():
        if shutil.which(program):
            return lambda: _through_program(program, command)
    programs = " or ".join(_PROGRAMS)
    raise SpeechClientError(f"--play needs {programs} on the PATH, or the package sounddevice: pip install sounddevice")


@contextlib.contextmanager
def _through_sounddevice(sounddevice: Any) -> Iterator[Play]:
    stream: Any = None

    def play(chunk: AudioChunk) -> None:
        nonlocal stream
        if stream is None:
            stream = sounddevice.OutputStream(samplerate=chunk.sample_rate, channels=1, dtype="int16")
            stream.start()
        stream.write(chunk.samples.reshape(-1, 1))

    try:
        yield play
        if stream is not None:
            stream.stop()
    except sounddevice.PortAudioError as e:
        raise SpeechClientError(f"the sound device cannot play: {e}") from e
    finally:
        if stream is not None:
            stream.close(ignore_errors=True)


@contextlib.contextmanager
def _through_program(program: str, command: str) -> Iterator[Play]:
    process: subprocess.Popen[bytes] | None = None

    def play(chunk: AudioChunk) -> None:
        nonlocal process
        if process is None:
            words = command.format(rate=chunk.sample_rate).split()
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(chunk.samples.astype("<i2").tobytes())
        process.stdin.flush()

    try:
        try:
            yield play
        except BrokenPipeError:  # the program has ended, and its own words say more
            raise SpeechClientError(f"{program} stopped playing: {_last_words(process)}") from None
        if process is not None and (words := _last_words(process)) != _PLAYED:
            raise SpeechClientError(f"{program} cannot play: {words}")
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.communicate()


def _last_words(process: subprocess.Popen[bytes] | None) -> str:
    """Waits for the program's end and returns what it complained of, or its exit code."""
    if process is None:
        return _PLAYED
    _, complaint = process.communicate()
    code = f"exit code {process.returncode}"
    return complaint.decode("utf-8", "replace").strip() or code if process.returncode else code
