"""Stored voices with each client and the command line, against a real server."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from triton_speech_client import (
    AsyncSpeechClient,
    HttpSpeechClient,
    InvalidRequest,
    SpeechClient,
    Voice,
    VoiceNotFound,
)
from triton_speech_client.cli import main

RATE = 16_000
TEXT = "Hello there."


class AsyncFromOutside:
    """The calls of the asyncio client, each in a loop of its own."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **options: Any) -> Any:
            async with AsyncSpeechClient(self._url) as client:
                return await getattr(client, name)(*args, **options)

        return lambda *args, **options: asyncio.run(call(*args, **options))


CLIENTS: dict[str, Callable[[Any], Any]] = {
    "grpc": lambda server: SpeechClient(server.grpc_url),
    "asyncio": lambda server: AsyncFromOutside(server.grpc_url),
    "http": lambda server: HttpSpeechClient(server.http_url),
}


@pytest.fixture(params=CLIENTS)
def each_client(request: pytest.FixtureRequest, speech_server: Any) -> Any:
    return CLIENTS[request.param](speech_server)


@pytest.fixture(autouse=True)
def _no_voice_stays(speech_server: Any) -> Iterator[None]:
    yield
    for path in speech_server.voices.iterdir():
        path.unlink()


@pytest.fixture
def ann(tmp_path: Path) -> Path:
    return recording(tmp_path / "ann.wav", 200)


@pytest.fixture
def bob(tmp_path: Path) -> Path:
    return recording(tmp_path / "bob.flac", 110)


def recording(path: Path, pitch: float) -> Path:
    time = np.arange(int(1.2 * RATE)) / RATE
    soundfile.write(path, 0.1 * sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 20)), RATE)
    return path


def test_a_voice_is_added_shown_spoken_in_and_removed(each_client: Any, ann: Path, bob: Path) -> None:
    options: Any = {"seed": 1, "max_seconds": 0.4}
    added = each_client.add_voice("ann", reference=ann, prompt_audio=bob, prompt_text="Eins, zwei — drei.")
    assert (added.name, added.mode, added.usable, added.replaced) == ("ann", "reference_continuation", True, False)
    assert added.prompt_text == "Eins, zwei — drei."
    assert added.sources["REFERENCE_AUDIO"] == hashlib.sha256(ann.read_bytes()).hexdigest()
    assert each_client.voice("ann") == added
    assert [voice.name for voice in each_client.voices()] == ["default", "ann"]
    one = each_client.synthesize(TEXT, voice="ann", **options).samples
    again = each_client.add_voice("ann", reference=bob)
    assert again.replaced
    assert again.version != added.version
    assert not np.array_equal(each_client.synthesize(TEXT, voice="ann", **options).samples, one)
    each_client.remove_voice("ann")
    assert [voice.name for voice in each_client.voices()] == ["default"]
    with pytest.raises(VoiceNotFound, match=r"VOICE: 'ann' is not known"):
        each_client.synthesize(TEXT, voice="ann", **options)


def test_errors_have_the_kind_that_speech_has(each_client: Any, ann: Path) -> None:
    for call in (each_client.voice, each_client.remove_voice):
        with pytest.raises(VoiceNotFound, match="'nobody' is not known"):
            call("nobody")
    for name in ("../x", "Zoë", "v" * 65, "default", ""):
        with pytest.raises(InvalidRequest) as error:
            each_client.add_voice(name, reference=ann)
        assert error.value.field == "NAME"
    with pytest.raises(InvalidRequest) as error:
        each_client.add_voice("ann", reference=b"hello")
    assert error.value.field == "REFERENCE_AUDIO"
    with pytest.raises(InvalidRequest) as error:
        each_client.add_voice("ann")
    assert error.value.field == "REFERENCE_AUDIO"


def test_each_client_sees_what_the_others_did(speech_server: Any, ann: Path) -> None:
    clients = [make(speech_server) for make in CLIENTS.values()]
    seen: list[Voice] = []
    for number, client in enumerate(clients):
        client.add_voice(f"v{number}", reference=ann)
        seen = clients[number - 1].voices()
    assert [voice.name for voice in seen] == ["default", "v0", "v1", "v2"]


def test_the_command_line_adds_lists_shows_speaks_and_removes(
    speech_server: Any, ann: Path, bob: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--url", speech_server.grpc_url])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    code, out, err = run("voice", "add", "ann", "--reference", str(ann))
    assert (code, err) == (0, "")
    assert out.startswith("added ann (voxcpm2, reference): 15 frames of REFERENCE_LATENTS, version ")
    code, out, _ = run("voice", "add", "ann", "--prompt", str(bob), "--prompt-text", "One two.")
    assert out.startswith("replaced ann (voxcpm2, continuation): 15 frames of PROMPT_LATENTS, version ")
    (speech_server.voices / "broken.safetensors").write_bytes(b"hello")
    code, out, _ = run("voice", "list")
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "default", "ann", "broken"]
    assert out.rstrip().endswith("unusable: it is not a voice file")
    code, out, _ = run("voice", "show", "ann")
    assert code == 0
    assert "One two." in out
    code, out, _ = run("voice", "show", "ann", "--json")
    assert json.loads(out)["mode"] == "continuation"
    assert run("voice", "show", "broken")[0] == 1
    code, out, _ = run("say", TEXT, "--voice", "ann", "-o", str(tmp_path / "x.wav"), "--max-seconds", "0.4")
    assert code == 0
    assert run("voice", "remove", "ann") == (0, "removed ann\n", "")
    code, out, err = run("voice", "show", "ann")
    assert (code, out) == (1, "")
    assert err.startswith("triton-speech: NAME: 'ann' is not known")
    code, out, err = run("voice", "add", "x", "--reference", str(tmp_path / "no.wav"))
    assert (code, out) == (1, "")
    assert "no.wav' cannot be read" in err
