"""Dialogues through the real server: a voice for each speaker, stored or recorded, by every way in."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from tests.server.bad_inputs import Row, family_rows
from tests.server.refusals import open_gateway, over, refused_by_gateway, refused_over_grpc, refused_over_http

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.vibevoice import (
    load_frontend,
    load_reference_encoder,
    load_talker,
    make_prompt,
    make_sampling,
)
from triton_speech.families.vibevoice.cast import number_rows
from triton_speech.families.vibevoice.frontend import FrontendParameters
from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint
from triton_speech.long_text import segment_seed
from triton_speech.request import SpeechRequest

ROWS = family_rows("vibevoice")
PIPELINES = ("vibevoice", "vibevoice_pipeline")
RATE, FRAME = 24_000, 3_200
SECONDS, FRAMES = 0.8, 6
NAMES = ("ann", "ben", "cleo", "dan")
DIALOGUE = "Speaker 2: Hi.\nSpeaker 1: Hello."
QUARTET = "\n".join(f"Speaker {number}: I am {name}." for number, name in enumerate(NAMES, 1))

Serving = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]


def recording(name: str) -> bytes:
    """A second and a half in nobody's voice, for each name another one."""
    time = np.arange(int(RATE * 1.5)) / RATE
    samples = 0.3 * np.sin(2 * np.pi * (110 + 30 * NAMES.index(name)) * time * (1 + 0.1 * np.sin(5 * time)))
    file = io.BytesIO()
    soundfile.write(file, samples.astype(np.float32), RATE, format="WAV")
    return file.getvalue()


def many(*values: str | bytes) -> Any:
    return np.array([value.encode() if isinstance(value, str) else value for value in values], np.object_)


def speech(text: str, **others: Any) -> dict[str, Any]:
    return {"TEXT": text, "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([SECONDS], np.float32), **others}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("vibevoice") / "one")


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("voices")


@pytest.fixture(scope="module")
def server(serving: Serving, calling: Calling, folder: Path, voices: Path) -> Iterator[Any]:
    """A server with a stored voice for each name."""
    with serving({}, folder, voices) as server, calling(server.grpc_url) as caller:
        for name in NAMES:
            added = {"COMMAND": "add", "NAME": name, "REFERENCE_AUDIO": recording(name)}
            assert not caller.ask("voices", added, ("RESULT",)).errors
        yield server


@pytest.fixture(scope="module")
def base(server: Any, calling: Calling) -> Iterator[Any]:
    with calling(server.grpc_url) as caller:
        yield caller


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[..., Any]:
    """What the talker makes of a script with the voices of ``names``, with no server."""
    encoder = load_reference_encoder(folder)

    def speak(tokens: list[int], names: tuple[str, ...], frames: int, seed: int = 1) -> Any:
        rows = [number_rows(encoder.encode(_samples(name), "reference"), place) for place, name in enumerate(names)]
        options = EngineOptions(max_num_seqs=1)
        talker = load_talker(folder, slots=slots_needed(options), device="cpu", dtype=None, length=512)
        engine = TorchEngine(talker, options)
        prompt = make_prompt(tokens, torch.from_numpy(np.concatenate(rows)), None)
        engine.add(TalkerRequest("alone", prompt, make_sampling(seed, {}), frames))
        made = []
        while not engine.is_idle:
            made += [frame.patch for frame in engine.step() if frame.patch is not None]
        return torch.cat([patch[0, 1:] for patch in made]).clamp(-1, 1).numpy()

    return speak


def _samples(name: str) -> Any:
    return soundfile.read(io.BytesIO(recording(name)), dtype="float32")[0]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_four_speakers_speak_in_their_four_stored_voices(
    base: Any, folder: Path, alone: Callable[..., Any], pipeline: str
) -> None:
    tokens = load_frontend(folder, FrontendParameters()).prepare(SpeechRequest(QUARTET, references=4)).tokens
    answer = base.ask(pipeline, speech(QUARTET, VOICE=many(*NAMES)))
    assert not answer.errors
    assert answer.finals == 1
    assert np.abs(answer.samples() - alone(tokens, NAMES, FRAMES)).max() < 1e-4
    others = base.ask(pipeline, speech(QUARTET, VOICE=many(*reversed(NAMES))))
    assert not np.array_equal(others.samples(), answer.samples())


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize(
    "given",
    [
        {"REFERENCE_AUDIO": many(recording("ann"), recording("ben"))},
        {"VOICE": many("default", "ben"), "REFERENCE_AUDIO": many(recording("ann"))},
        {"VOICE": many("ann", "default"), "REFERENCE_AUDIO": many(recording("ben"))},
        {"VOICE": many("default", "default"), "REFERENCE_AUDIO": many(recording("ann"), recording("ben"))},
        {"VOICE": many("default"), "REFERENCE_AUDIO": many(recording("ann"), recording("ben"))},
    ],
    ids=["recordings", "recorded_and_stored", "stored_and_recorded", "in_place_of_defaults", "beside_a_default"],
)
def test_a_recording_is_the_voice_that_is_stored_of_it(base: Any, pipeline: str, given: dict[str, Any]) -> None:
    stored = base.ask(pipeline, speech(DIALOGUE, VOICE=many("ann", "ben")))
    answer = base.ask(pipeline, speech(DIALOGUE, **given))
    assert not answer.errors
    assert np.array_equal(answer.samples(), stored.samples())


def test_the_first_voice_is_that_of_whoever_speaks_first(base: Any, folder: Path, alone: Callable[..., Any]) -> None:
    tokens = load_frontend(folder, FrontendParameters()).prepare(SpeechRequest(DIALOGUE, references=2)).tokens
    answer = base.ask(PIPELINES[0], speech(DIALOGUE, VOICE=many("ann", "ben")))
    assert np.abs(answer.samples() - alone(tokens, ("ann", "ben"), FRAMES)).max() < 1e-4
    renamed = base.ask(PIPELINES[0], speech(DIALOGUE.replace("2", "3"), VOICE=many("ann", "ben")))
    assert np.array_equal(renamed.samples(), answer.samples())


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_recording_that_cannot_be_used_is_told_by_its_number(base: Any, pipeline: str) -> None:
    answer = base.ask(pipeline, speech(DIALOGUE, REFERENCE_AUDIO=many(recording("ann"), b"RIFF")))
    (text,) = answer.errors
    assert "REFERENCE_AUDIO: recording 2: is not an audio file" in text
    assert (len(answer.responses), answer.finals) == (0, 1)


def test_a_long_dialogue_is_cut_between_turns_and_keeps_its_voices(
    serving: Serving, calling: Calling, folder: Path, voices: Path, alone: Callable[..., Any], server: Any
) -> None:
    """Whoever speaks in only one of the segments has a voice in each: speakers keep their numbers."""
    script = "\n".join(("Speaker 1: One two three.", "Speaker 2: Four five.", "Speaker 3: Six.", "Speaker 1: Seven."))
    limits = {"segment_tokens": 40, "frames_per_token": 0.001}
    request = SpeechRequest(script, references=3, max_seconds=1200.0)
    frontend = load_frontend(folder, FrontendParameters(**limits))
    first, after = frontend.prepare_long(request, has_voice=True)
    assert len(after.more) >= 2
    wanted = [
        alone(segment.tokens, NAMES[:3], segment.max_frames, segment_seed(1, index))
        for index, segment in enumerate((first, *after.more))
    ]
    with serving({"vibevoice_frontend": limits}, folder, voices) as other, calling(other.grpc_url) as caller:
        answer = caller.ask("vibevoice", {"TEXT": script, "SEED": np.array([1], np.uint64), "VOICE": many(*NAMES[:3])})
    assert not answer.errors
    assert answer.finals == 1
    assert answer.column("CHUNK_INDEX") == list(range(len(answer.responses)))
    assert answer.column("FINISH_REASON") == [b""] * (len(answer.responses) - 1) + [b"length"]
    assert np.abs(answer.samples() - np.concatenate(wanted)).max() < 1e-4


def test_every_client_takes_a_list_of_voices(server: Any, base: Any, tmp_path: Path, capsys: Any) -> None:
    import asyncio

    from triton_speech_client import AsyncSpeechClient, HttpSpeechClient, SpeechClient
    from triton_speech_client.cli import main

    stored = base.ask("vibevoice", speech(DIALOGUE, VOICE=many("ann", "ben"))).samples()
    options: dict[str, Any] = {"seed": 1, "max_seconds": SECONDS}
    pair = [(_samples("ann"), RATE), recording("ben")]
    with SpeechClient(server.grpc_url, "vibevoice") as client:
        assert np.array_equal(client.synthesize(DIALOGUE, voice=["ann", "ben"], **options).samples, stored)
        # The first of them is wrapped as a WAV file of floats, which loses nothing of the file's 16 bits.
        assert np.array_equal(client.synthesize(DIALOGUE, reference=pair, **options).samples, stored)

    async def speak() -> Any:
        async with AsyncSpeechClient(server.grpc_url, "vibevoice") as client:
            return (await client.synthesize(DIALOGUE, voice=("ann", "ben"), **options)).samples

    assert np.array_equal(asyncio.run(speak()), stored)
    over_http = HttpSpeechClient(server.http_url, "vibevoice")
    assert np.allclose(over_http.synthesize(DIALOGUE, voice=["ann", "ben"], **options).samples, stored, atol=1e-6)

    words = ["say", DIALOGUE, "--url", server.grpc_url, "--pipeline", "vibevoice", "--seed", "1"]
    words += ["--max-seconds", str(SECONDS), "--voice", "ann", "--voice", "ben", "-o", str(tmp_path / "two.wav")]
    assert main(words) == 0
    assert np.abs(soundfile.read(tmp_path / "two.wav")[0] - stored).max() < 1e-4
    (tmp_path / "ann.wav").write_bytes(recording("ann"))
    words = [*words[:-6], "--voice", "default", "--voice", "ben", "--reference", str(tmp_path / "ann.wav"), *words[-2:]]
    assert main(words) == 0
    assert np.abs(soundfile.read(tmp_path / "two.wav")[0] - stored).max() < 1e-4


@pytest.fixture(scope="module")
def gateway(server: Any) -> Iterator[Any]:
    """Speaks to a gateway before the server, in this process."""
    with open_gateway(server) as client:
        yield client


def test_the_gateway_takes_a_list_of_voices(base: Any, gateway: Any) -> None:
    import base64

    stored = base.ask("vibevoice", speech(DIALOGUE, VOICE=many("ann", "ben")), ("PCM16", "SAMPLE_RATE"))
    body = {"input": DIALOGUE, "model": "vibevoice", "seed": 1, "max_seconds": SECONDS, "response_format": "pcm"}
    files = [base64.b64encode(recording(name)).decode() for name in ("ann", "ben")]
    for given in (
        {"voice": ["ann", "ben"]},
        {"reference_audio": files},
        # OpenAI's names stand for the default voice, in a list too.
        {"voice": ["alloy", "ben"], "reference_audio": files[:1]},
    ):
        answer = gateway.post("/v1/audio/speech", json={**body, **given})
        assert answer.status_code == 200, answer.text
        assert answer.content == stored.samples("PCM16").tobytes()
    for wrong in ([], ["ann"] * 17, ["ann", 1]):
        refused = gateway.post("/v1/audio/speech", json={**body, "voice": wrong})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "voice"


def skip_where_it_does_not_hold(row: Row, pipeline: str) -> None:
    if pipeline not in row.pipelines:
        pytest.skip(f"holds for {', '.join(row.pipelines)}")


@pytest.mark.parametrize("pipeline", PIPELINES)
@over("grpc", ROWS)
def test_bad_input_is_refused_with_field_and_limit(base: Any, pipeline: str, row: Row) -> None:
    skip_where_it_does_not_hold(row, pipeline)
    refused_over_grpc(base, pipeline, row, speech("So."))


@pytest.mark.parametrize("pipeline", PIPELINES)
@over("http", ROWS)
def test_bad_input_over_http_is_an_error_status_and_one_sentence(server: Any, pipeline: str, row: Row) -> None:
    skip_where_it_does_not_hold(row, pipeline)
    refused_over_http(server, pipeline, row)


@pytest.mark.parametrize("pipeline", PIPELINES)
@over("gateway", ROWS)
def test_bad_input_to_the_gateway_is_refused_in_its_own_names(gateway: Any, pipeline: str, row: Row) -> None:
    skip_where_it_does_not_hold(row, pipeline)
    refused_by_gateway(gateway, pipeline, row)
