"""Qwen3-TTS through the real server: both pipelines, each kind of model, voices, ends and refusals."""

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
from triton_speech.families.qwen3_tts import load_frontend, load_talker, make_prompt, make_sampling
from triton_speech.families.qwen3_tts.checkpoint import load_speech_decoder
from triton_speech.families.qwen3_tts.frontend import FrontendParameters
from triton_speech.families.qwen3_tts.tiny import write_tiny_checkpoint
from triton_speech.request import SpeechRequest
from triton_speech_client import HttpSpeechClient, SpeechClient
from triton_speech_client.request import SpeechOptions, build_tensors

ROWS = family_rows("qwen3_tts")
PIPELINES = ("qwen3_tts", "qwen3_tts_pipeline")
RATE = 24_000
FRAME = 1_920
SECONDS = 1.2
FRAMES = 15

Serving = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]


def speech(text: str = "The end.", *, seed: int = 1, **others: Any) -> dict[str, Any]:
    """The inputs of a good request of 15 frames."""
    return {
        "TEXT": text,
        "SEED": np.array([seed], np.uint64),
        "MAX_SECONDS": np.array([SECONDS], np.float32),
        **others,
    }


def recording(seconds: float = 1.5) -> bytes:
    time = np.arange(int(RATE * seconds)) / RATE
    samples = 0.3 * np.sin(2 * np.pi * (150 + 40 * np.sin(5 * time)) * time)
    file = io.BytesIO()
    soundfile.write(file, samples.astype(np.float32), RATE, format="WAV")
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("qwen") / "base")


@pytest.fixture(scope="module")
def server(serving: Serving, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """With a Base model; there is no other checkpoint, so no other family is served."""
    with serving({}, folder, tmp_path_factory.mktemp("voices")) as server:
        yield server


@pytest.fixture(scope="module")
def base(server: Any, calling: Calling) -> Iterator[Any]:
    """A caller of the server with a Base model."""
    with calling(server.grpc_url) as caller:
        yield caller


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_what_is_heard_are_the_frames_that_the_talker_makes(base: Any, folder: Path, pipeline: str) -> None:
    """The stages between add nothing and leave nothing out: the same as talker and decoder alone."""
    answer = base.ask(pipeline, speech())
    assert not answer.errors
    assert answer.finals == 1
    assert answer.column("CHUNK_INDEX") == list(range(len(answer.responses)))
    assert answer.column("FINISH_REASON") == [b""] * (len(answer.responses) - 1) + [b"length"]
    assert set(answer.column("SAMPLE_RATE")) == {RATE}
    lengths = [len(response.as_numpy("AUDIO")) // FRAME for response in answer.responses]
    assert lengths == [1, 2, 4, 8]

    options = EngineOptions(max_num_seqs=1)
    talker = load_talker(folder, slots=slots_needed(options), device="cpu", dtype=None, length=128)
    prepared = load_frontend(folder, FrontendParameters()).prepare(SpeechRequest("The end."))
    prompt = make_prompt(prepared.tokens, None, None)
    engine, made = TorchEngine(talker, options), []
    engine.add(TalkerRequest("alone", prompt, make_sampling(1, {}), FRAMES))
    while not engine.is_idle:
        made += [frame.patch for frame in engine.step()]
    audio = load_speech_decoder(folder)(torch.stack(made)[:, 0].long().unsqueeze(0))[0].numpy()
    assert np.abs(answer.samples() - audio).max() < 1e-5


def test_both_pipelines_say_the_same_and_another_seed_says_something_else(base: Any) -> None:
    one, same = (base.ask(name, speech(seed=5)).samples() for name in PIPELINES)
    assert np.array_equal(one, same)
    assert not np.array_equal(base.ask(PIPELINES[0], speech(seed=6)).samples(), one)


def test_streams_that_run_at_once_say_what_each_says_alone(base: Any) -> None:
    every = [speech(f"Number {index}.", seed=index) for index in range(6)]
    together = base.ask_all(PIPELINES[0], every)
    for inputs, answer in zip(every, together, strict=True):
        assert np.allclose(answer.samples(), base.ask(PIPELINES[0], inputs).samples(), atol=1e-5)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_recordings_are_followed(base: Any, pipeline: str) -> None:
    plain = base.ask(pipeline, speech()).samples()
    timbre = base.ask(pipeline, speech(REFERENCE_AUDIO=recording()))
    goes_on = base.ask(pipeline, speech(PROMPT_AUDIO=recording(), PROMPT_TEXT="It was."))
    for answer in (timbre, goes_on):
        assert not answer.errors
        # What the codec hears of the recording is not sent.
        assert len(answer.samples()) == FRAMES * FRAME
    assert not np.array_equal(timbre.samples(), plain)
    assert not np.array_equal(goes_on.samples(), timbre.samples())


def test_a_long_recording_is_heard_whole(base: Any) -> None:
    answer = base.ask(PIPELINES[0], speech(PROMPT_AUDIO=recording(29.0), PROMPT_TEXT="It was."))
    assert not answer.errors
    assert len(answer.samples()) == FRAMES * FRAME


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_stored_voice_says_what_its_recording_does(base: Any, pipeline: str) -> None:
    fields = {"NAME": f"maria_{pipeline}", "PROMPT_AUDIO": recording(), "PROMPT_TEXT": "It was."}
    assert not base.ask("voices", {"COMMAND": "add", **fields}, ("RESULT",)).errors
    sent = base.ask(pipeline, speech(PROMPT_AUDIO=recording(), PROMPT_TEXT="It was."))
    stored = base.ask(pipeline, speech(VOICE=f"maria_{pipeline}"))
    assert not stored.errors
    assert np.array_equal(stored.samples(), sent.samples())


def test_a_long_text_is_one_stream(base: Any) -> None:
    text = " ".join(f"This is sentence number {index} of a long text." for index in range(30))
    answer = base.ask(PIPELINES[0], {**speech(text), "MAX_SECONDS": np.array([100.0], np.float32)})
    assert not answer.errors
    assert answer.finals == 1
    assert answer.column("CHUNK_INDEX") == list(range(len(answer.responses)))


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([5, 5], "must have at least 6"),
        ([0] * 6 + [1, 1, 1, 1085], "failed on this stream"),
        ([99_999], "outside 0 to"),
    ],
)
def test_tokens_that_are_no_packed_prompt_are_refused(base: Any, tokens: list[int], said: str) -> None:
    inputs = {
        "TOKENS": np.array(tokens, np.int32),
        "SEED": np.array([1], np.uint64),
        "MAX_FRAMES": np.array([5], np.int32),
        **{name: np.array([1.0], np.float32) for name in ("TEMPERATURE", "TOP_P", "REPETITION_PENALTY")},
        **{name: np.array([1.0], np.float32) for name in ("CODES_TEMPERATURE", "CODES_TOP_P")},
        **{name: np.array([5], np.int32) for name in ("TOP_K", "CODES_TOP_K")},
    }
    (error,) = base.ask("qwen3_tts_talker", inputs, ("LATENTS",)).errors
    assert said in error
    assert not base.ask(PIPELINES[0], speech()).errors


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_caller_who_leaves_makes_room(base: Any, pipeline: str) -> None:
    """More streams are begun and left than the talker has slots."""
    for _ in range(12):
        call = base.open(pipeline, {**speech("the " * 60), "MAX_SECONDS": np.array([100.0], np.float32)})
        assert not next(call).error_message
        call.cancel()
    assert not base.ask(pipeline, speech()).errors


def test_speakers_of_a_custom_voice_model_take_no_recordings(
    serving: Serving, calling: Calling, tmp_path: Path
) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "speakers", kind="custom_voice")
    with serving({}, checkpoint) as server, calling(server.grpc_url) as caller:
        for pipeline in PIPELINES:
            heard = [caller.ask(pipeline, speech(VOICE=voice)) for voice in ("vivian", "dylan")]
            heard.append(caller.ask(pipeline, speech(VOICE="vivian", INSTRUCTION="Calm.")))
            assert [answer.errors for answer in heard] == [[], [], []]
            assert len({answer.samples().tobytes() for answer in heard}) == 3
            (missing,) = caller.ask(pipeline, speech()).errors
            assert "VOICE: is missing; this model speaks in the voices dylan, vivian" in missing
            (refused,) = caller.ask(pipeline, speech(VOICE="vivian", REFERENCE_AUDIO=recording())).errors
            assert "REFERENCE_AUDIO: is not followed by this custom_voice model" in refused


def test_a_design_model_ends_streams_by_itself(serving: Serving, calling: Calling, tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "design", kind="voice_design", stops_at_once=True)
    with serving({}, checkpoint) as server, calling(server.grpc_url) as caller:
        for pipeline in PIPELINES:
            answer = caller.ask(pipeline, speech(INSTRUCTION="An old voice."))
            assert not answer.errors
            assert answer.column("FINISH_REASON")[-1] == b"stop"
            assert len(answer.samples()) == 2 * FRAME


def skip_where_it_does_not_hold(row: Row, pipeline: str) -> None:
    if pipeline not in row.pipelines:
        pytest.skip(f"holds for {', '.join(row.pipelines)}")


@pytest.mark.parametrize("pipeline", PIPELINES)
@over("grpc", ROWS)
def test_bad_input_is_refused_with_field_and_limit(base: Any, pipeline: str, row: Row) -> None:
    skip_where_it_does_not_hold(row, pipeline)
    refused_over_grpc(base, pipeline, row, {**speech(), "MAX_SECONDS": np.array([0.1], np.float32)})


@pytest.mark.parametrize("pipeline", PIPELINES)
@over("http", ROWS)
def test_bad_input_over_http_is_an_error_status_and_one_sentence(server: Any, pipeline: str, row: Row) -> None:
    skip_where_it_does_not_hold(row, pipeline)
    refused_over_http(server, pipeline, row)


@pytest.fixture(scope="module")
def gateway_client(server: Any) -> Iterator[Any]:
    with open_gateway(server) as client:
        yield client


@pytest.mark.parametrize("pipeline", PIPELINES)
@over("gateway", ROWS)
def test_bad_input_to_the_gateway_is_refused_in_its_own_names(gateway_client: Any, pipeline: str, row: Row) -> None:
    skip_where_it_does_not_hold(row, pipeline)
    refused_by_gateway(gateway_client, pipeline, row)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_client_says_the_same_with_the_familys_own_fields(
    server: Any, base: Any, gateway_client: Any, pipeline: str
) -> None:
    drawn: SpeechOptions = {
        **{"temperature": 0.5, "top_k": 7, "top_p": 0.8, "repetition_penalty": 1.5},
        **{"codes_temperature": 1.2, "codes_top_k": 0, "codes_top_p": 0.9},
        **{"seed": 3, "max_seconds": SECONDS},
    }
    sent = {"TEXT": "The end.", **build_tensors("The end.", **drawn)}
    expected = base.ask(pipeline, sent).samples()
    assert not np.array_equal(expected, base.ask(pipeline, speech(seed=3)).samples())
    with SpeechClient(server.grpc_url, pipeline) as client:
        assert np.array_equal(client.synthesize("The end.", **drawn).samples, expected)
    over_http = HttpSpeechClient(server.http_url, pipeline).synthesize("The end.", **drawn).samples
    assert np.allclose(over_http, expected, atol=1e-6)
    answer = gateway_client.post(
        "/v1/audio/speech", json={"input": "The end.", "model": pipeline, "response_format": "pcm", **drawn}
    )
    assert answer.content == np.clip(np.floor(expected * 32768), -32768, 32767).astype("<i2").tobytes()
