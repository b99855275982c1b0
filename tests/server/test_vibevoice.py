"""VibeVoice through the real server: both pipelines, scripts, voices, ends and refusals."""

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.vibevoice import load_frontend, load_talker, make_prompt, make_sampling
from triton_speech.families.vibevoice.frontend import FrontendParameters
from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint
from triton_speech.request import SpeechRequest

PIPELINES = ("vibevoice", "vibevoice_pipeline")
RATE, FRAME = 24_000, 3_200
SECONDS, FRAMES = 1.6, 12
SCRIPT = "\n".join(
    (
        "Speaker 1: Hello there.",
        "Speaker 2: Hello.",
        "Speaker 3: And who are you?",
        "Speaker 4: I am the fourth.",
        "And I say more.",
        "Speaker 1: So it is.",
    )
)

Serving = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]


def speech(text: str = "The end.", *, seed: int = 1, seconds: float = SECONDS, **others: Any) -> dict[str, Any]:
    """The inputs of a good request of 12 frames."""
    return {
        "TEXT": text,
        "SEED": np.array([seed], np.uint64),
        "MAX_SECONDS": np.array([seconds], np.float32),
        **others,
    }


def recording(seconds: float = 1.5) -> bytes:
    time = np.arange(int(RATE * seconds)) / RATE
    samples = 0.3 * np.sin(2 * np.pi * (150 + 40 * np.sin(5 * time)) * time)
    file = io.BytesIO()
    soundfile.write(file, samples.astype(np.float32), RATE, format="WAV")
    return file.getvalue()


def alone(folder: Path, text: str, seed: int, frames: int) -> list[Frame]:
    """What the talker makes of a text, with no server."""
    options = EngineOptions(max_num_seqs=1)
    talker = load_talker(folder, slots=slots_needed(options), device="cpu", dtype=None, length=512)
    prepared = load_frontend(folder, FrontendParameters()).prepare(SpeechRequest(text))
    engine = TorchEngine(talker, options)
    engine.add(TalkerRequest("alone", make_prompt(prepared.tokens, None, None), make_sampling(seed, {}), frames))
    made: list[Frame] = []
    while not engine.is_idle:
        made += engine.step()
    return made


def samples_of(frames: list[Frame]) -> np.ndarray[Any, Any]:
    patches = [frame.patch for frame in frames if frame.patch is not None]
    return torch.cat([patch[0, 1:] for patch in patches]).clamp(-1, 1).numpy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("vibevoice") / "one")


@pytest.fixture(scope="module")
def base(serving: Serving, calling: Calling, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A caller of a server; there is no other checkpoint, so no other family is served."""
    with serving({}, folder, tmp_path_factory.mktemp("voices")) as server, calling(server.grpc_url) as caller:
        yield caller


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("text", ["The end.", SCRIPT], ids=["text", "four_speakers"])
def test_what_is_heard_are_the_frames_that_the_talker_makes(base: Any, folder: Path, pipeline: str, text: str) -> None:
    answer = base.ask(pipeline, speech(text))
    assert not answer.errors
    assert answer.finals == 1
    assert answer.column("CHUNK_INDEX") == list(range(len(answer.responses)))
    assert answer.column("FINISH_REASON") == [b""] * (len(answer.responses) - 1) + [b"length"]
    assert set(answer.column("SAMPLE_RATE")) == {RATE}
    assert [len(response.as_numpy("AUDIO")) // FRAME for response in answer.responses][:3] == [1, 2, 4]
    wanted = samples_of(alone(folder, text, 1, FRAMES))
    assert len(wanted) == FRAMES * FRAME
    assert np.abs(answer.samples() - wanted).max() < 1e-4


def test_both_pipelines_say_the_same_and_other_settings_something_else(base: Any) -> None:
    one, same = (base.ask(name, speech(seed=5)).samples() for name in PIPELINES)
    assert np.array_equal(one, same)
    for other in (
        speech(seed=6),
        speech(seed=5, CFG_VALUE=np.array([3.0], np.float32)),
        speech(seed=5, INFERENCE_STEPS=np.array([5], np.int32)),
    ):
        assert not np.array_equal(base.ask(PIPELINES[0], other).samples(), one)


def test_streams_that_run_at_once_say_what_each_says_alone(base: Any) -> None:
    every = [speech(f"Number {index}." * (index + 1), seed=index) for index in range(4)]
    together = base.ask_all(PIPELINES[0], every)
    for inputs, answer in zip(every, together, strict=True):
        assert np.allclose(answer.samples(), base.ask(PIPELINES[0], inputs).samples(), atol=1e-4)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_voice_sample_is_followed_sent_or_stored(base: Any, pipeline: str) -> None:
    plain = base.ask(pipeline, speech()).samples()
    sent = base.ask(pipeline, speech(REFERENCE_AUDIO=recording()))
    assert not sent.errors
    assert len(sent.samples()) == FRAMES * FRAME
    assert not np.array_equal(sent.samples(), plain)
    added = base.ask("voices", {"COMMAND": "add", "NAME": pipeline, "REFERENCE_AUDIO": recording()}, ("RESULT",))
    assert not added.errors
    stored = base.ask(pipeline, speech(VOICE=pipeline))
    assert not stored.errors
    assert np.array_equal(stored.samples(), sent.samples())


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"TEXT": "\n".join(f"Speaker {n}: a" for n in range(1, 6))},
            "TEXT: has 5 speakers (1, 2, 3, 4, 5), at most 4",
        ),
        ({"TEXT": "Speaker 1:\nSpeaker 2: "}, "TEXT: holds nothing that can be spoken"),
        ({"TEXT": SCRIPT, "REFERENCE_AUDIO": recording()}, "REFERENCE_AUDIO: has 1 voice for 4 speakers (Speaker 1, "),
        ({"PROMPT_AUDIO": recording(), "PROMPT_TEXT": "So."}, "PROMPT_TEXT: is not followed by this model"),
        ({"INSTRUCTION": "Calm."}, "INSTRUCTION: is not followed by this model"),
        ({"INFERENCE_STEPS": np.array([101], np.int32)}, "INFERENCE_STEPS: 101 is out of range, allowed is 2 to 100"),
        ({"CFG_VALUE": np.array([10.5], np.float32)}, "CFG_VALUE: 10.5 is out of range, allowed is 0 to 10"),
        ({"VOICE": "nobody"}, "VOICE: 'nobody' is not known"),
    ],
)
def test_what_the_model_cannot_do_is_told_in_one_error(
    base: Any, pipeline: str, fields: dict[str, Any], said: str
) -> None:
    answer = base.ask(pipeline, speech() | fields)
    assert len(answer.errors) == 1
    assert said in answer.errors[0]
    assert answer.finals == 1


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_caller_who_leaves_makes_room(base: Any, pipeline: str) -> None:
    """More streams are begun and left than the talker has slots."""
    for _ in range(12):
        call = base.open(pipeline, speech("the " * 20, seconds=100.0))
        assert not next(call).error_message
        call.cancel()
    assert not base.ask(pipeline, speech()).errors


def test_steps_without_a_frame_are_not_heard(serving: Serving, calling: Calling, tmp_path: Path) -> None:
    """Speech ends and begins within these streams; one is over by itself, after 12 frames in 18 steps."""
    text = "Speaker 1: And then?"
    checkpoint = write_tiny_checkpoint(tmp_path / "chance", seed=17, stops_at_once=None, tie_word_embeddings=False)
    frames = alone(checkpoint, text, 2**40 + 77, 40)
    assert frames[-1].finish == "stop"
    with serving({}, checkpoint) as server, calling(server.grpc_url) as caller:
        for pipeline in PIPELINES:
            answer = caller.ask(pipeline, speech(text, seed=2**40 + 77, seconds=10.0))
            assert not answer.errors
            assert answer.column("FINISH_REASON")[-1] == b"stop"
            assert len(answer.samples()) == 12 * FRAME
            assert np.abs(answer.samples() - samples_of(frames)).max() < 1e-4
