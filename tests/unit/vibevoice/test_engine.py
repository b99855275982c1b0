"""A stream through the torch engine: what is sent, and how it ends."""

from pathlib import Path

import pytest

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.engine.warm_up import warm_up
from triton_speech.families.registry import load_family
from triton_speech.families.vibevoice import load_codec, load_frontend, load_talker, make_prompt, make_sampling
from triton_speech.families.vibevoice.frontend import FrontendParameters
from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint
from triton_speech.request import SpeechRequest

SILENT = 0
"""Seed of weights that never say a frame."""


def run(folder: Path, *, deterministic: bool, max_frames: int = 40, length: int = 256) -> list[Frame]:
    options = EngineOptions(max_num_seqs=2, deterministic=deterministic)
    talker = load_talker(folder, slots=slots_needed(options), device="cpu", dtype=None, length=length)
    tokens = load_frontend(folder, FrontendParameters()).prepare(SpeechRequest("Speaker 1: And then?")).tokens
    engine = TorchEngine(talker, options)
    engine.add(TalkerRequest("one", make_prompt(tokens, None, None), make_sampling(2**40 + 77, {}), max_frames))
    made: list[Frame] = []
    while not engine.is_idle:
        made += engine.step()
    return made


@pytest.fixture(scope="module")
def by_chance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "by_chance"
    return write_tiny_checkpoint(path, seed=17, stops_at_once=None, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(
        tmp_path_factory.mktemp("tiny") / "silent", seed=SILENT, stops_at_once=None, tie_word_embeddings=False
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_steps_without_a_frame_are_not_sent(by_chance: Path, deterministic: bool) -> None:
    """Of 18 steps, 12 make a frame; the last one says that all is over."""
    made = run(by_chance, deterministic=deterministic)
    assert [frame.finish for frame in made] == [""] * 12 + ["stop"]
    assert made[-1].patch is None
    assert all(frame.patch is not None and frame.patch[0, 0] == 1 for frame in made[:-1])


def test_steps_without_a_frame_do_not_count_as_speech(by_chance: Path) -> None:
    made = run(by_chance, deterministic=False, max_frames=5)
    assert [frame.patch is not None for frame in made] == [True] * 5
    assert made[-1].finish == "length"


def test_a_stream_ends_where_its_positions_do(folder: Path) -> None:
    full = run(folder, deterministic=False, max_frames=1000, length=200)
    assert full[-1].finish == "length"
    assert 0 < len(full) < 200


def test_an_end_before_any_frame_is_an_error(tmp_path: Path) -> None:
    (only,) = run(write_tiny_checkpoint(tmp_path / "stops", stops_at_once=True), deterministic=False)
    assert only.error is not None


def test_a_stream_that_never_makes_a_frame_is_an_error_where_its_positions_end(silent: Path) -> None:
    (only,) = run(silent, deterministic=False)
    assert only.patch is None
    assert only.error is not None
    assert "before its first frame" in only.error.text


def test_a_warm_up_ends_where_no_frame_comes_of_it(silent: Path) -> None:
    options = EngineOptions(max_num_seqs=2)
    engine = TorchEngine(
        load_talker(silent, slots=slots_needed(options), device="cpu", dtype=None, length=256), options
    )
    steps = 0
    step = engine.step

    def counted() -> list[Frame]:
        nonlocal steps
        steps += 1
        return step()

    engine.step = counted  # type: ignore[method-assign]
    warm_up(engine, load_family("vibevoice"), frames=2)
    assert engine.is_idle
    assert 2 <= steps <= 20


def test_the_codec_hands_on_what_was_spoken(folder: Path) -> None:
    codec = load_codec(folder, slots=2)
    made = run(folder, deterministic=False, max_frames=2)
    patches = [frame.patch for frame in made if frame.patch is not None]
    audio = codec.decode(patches[0][None, None], [1])
    assert audio.shape == (1, 3200)
    assert abs(audio[0] - patches[0][0, 1:].clamp(-1, 1)).max() == 0
