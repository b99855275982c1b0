"""VibeVoice on vLLM: the same seed gives the samples of the torch engine. Runs where vLLM is installed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm", reason="vLLM is not installed here (make test-vllm has an environment of its own)")

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.engine.slots import SCRATCH_SLOT
from triton_speech.families.vibevoice import load_frontend, make_prompt, talker_facts
from triton_speech.families.vibevoice.frontend import FrontendParameters
from triton_speech.families.vibevoice.settings import Sampling
from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint
from triton_speech.request import SpeechRequest

from .conftest import run

FRAMES = 24
OPTIONS = EngineOptions(max_num_seqs=4, max_waiting=8, prefill_budget=32, prefill_chunk=32)
WIDE = {"num_attention_heads": 2, "num_key_value_heads": 1}
"""Heads of 32, the smallest that vLLM attends with on a CPU."""
DIALOGUE = "Speaker 1: Good morning.\nSpeaker 2: And to you.\nSpeaker 1: So it is."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), decoder_config=WIDE)


@pytest.fixture(scope="module")
def vllm_engine(folder: Path) -> Any:
    """One engine for the module: vLLM takes seconds to start."""
    return engine_of("vllm", folder)


@pytest.fixture
def torch_engine(folder: Path) -> Any:
    return engine_of("torch", folder)


def engine_of(kind: str, folder: Path, *, length: int = 320, **how: Any) -> Any:
    return build_engine(EngineChoice(kind, length=length, **how), OPTIONS, "vibevoice", folder)[0]


def request_of(
    folder: Path,
    stream: str,
    text: str = "So it is.",
    *,
    voices: int = 0,
    frames: int = FRAMES,
    seed: int = 0,
    **sampling: Any,
) -> TalkerRequest:
    """A stream with so many voices, each of a few frames more than the one before."""
    segment = load_frontend(folder, FrontendParameters()).prepare(SpeechRequest(text, references=voices))
    source = torch.Generator().manual_seed(seed)
    rows = None
    if voices:
        samples = [torch.randn(5 + 2 * voice, 1, 65, generator=source) for voice in range(voices)]
        for voice, sample in enumerate(samples):
            sample[..., 0] = voice
        rows = torch.cat(samples)
    return TalkerRequest(stream, make_prompt(segment.tokens, rows, None), Sampling(seed, **sampling), frames)


def mixed(folder: Path) -> list[TalkerRequest]:
    """With and without voices, prompts of several steps, guided in many ways."""
    return [
        request_of(folder, "plain"),
        request_of(folder, "dialogue", DIALOGUE, voices=2, seed=2**63 + 5, cfg_value=2.0),
        request_of(folder, "few steps", "A" + " and a" * 9, seed=3, inference_steps=4, frames=9),
        request_of(folder, "one voice", voices=1, seed=4, cfg_value=0.0),
        request_of(folder, "another", DIALOGUE, seed=5, frames=15),
    ]


def samples(frames: list[Frame]) -> Tensor:
    """(T, hop) of one stream, of which T may be 0."""
    made = [frame.patch[0, 1:] for frame in frames if frame.patch is not None]
    return torch.stack(made) if made else torch.zeros(0, 3200)


def assert_same(got: list[Frame], expected: list[Frame]) -> None:
    torch.testing.assert_close(samples(got), samples(expected), atol=1e-3, rtol=1e-2)
    assert [frame.finish for frame in got] == [frame.finish for frame in expected]


def test_samples_are_those_of_the_torch_engine(vllm_engine, torch_engine, folder):
    one = request_of(folder, "one", DIALOGUE, voices=2)
    expected, got = (run(engine, {0: [one]})["one"] for engine in (torch_engine, vllm_engine))
    assert samples(got).shape == (FRAMES, 3200)
    assert_same(got, expected)


def test_streams_at_different_positions_have_the_samples_of_the_torch_engine(vllm_engine, torch_engine, folder):
    """Each has a negative stream, a decoder and an ear of its own, whatever the others do."""
    requests = mixed(folder)
    alone = {one.stream: run(torch_engine, {0: [one]})[one.stream] for one in requests}
    together = run(vllm_engine, {0: requests[:2], 3: requests[2:4], 7: requests[4:]})
    for stream, expected in alone.items():
        assert_same(together[stream], expected)
    firsts = [samples(frames)[0] for frames in together.values()]
    assert all(not torch.allclose(one, other, atol=1e-3) for i, one in enumerate(firsts) for other in firsts[:i])


def test_a_cancelled_stream_leaves_nothing_to_the_next_in_its_slot(vllm_engine, torch_engine, folder):
    for index in range(4):
        vllm_engine.add(request_of(folder, f"long{index}", frames=200, seed=index))
    after = request_of(folder, "next", seed=7)
    vllm_engine.add(after)
    for _ in range(6):
        vllm_engine.step()
    for index in range(4):
        vllm_engine.cancel(f"long{index}")
    ended = {frame.stream for frame in vllm_engine.step() if frame.finish == "cancelled"}
    assert ended == {f"long{index}" for index in range(4)}
    assert_same(run(vllm_engine, {0: []})["next"], run(torch_engine, {0: [after]})["next"])


def test_a_state_that_is_not_finite_ends_its_stream_alone(vllm_engine, torch_engine, folder):
    sick, well = (request_of(folder, stream, seed=seed) for seed, stream in enumerate(("sick", "well")))
    vllm_engine.add(sick)
    vllm_engine.add(well)
    heard = list(vllm_engine.step())
    vllm_engine.talker.inputs[vllm_engine._running["sick"].slot] = torch.nan
    rest = run(vllm_engine, {0: []})
    assert rest["sick"][-1].error is not None
    assert "NaN" in rest["sick"][-1].error.text
    assert_same(
        [frame for frame in heard if frame.stream == "well"] + rest["well"], run(torch_engine, {0: [well]})["well"]
    )
    again = request_of(folder, "again", seed=3)
    assert_same(run(vllm_engine, {0: [again]})["again"], run(torch_engine, {0: [again]})["again"])


# Below, each test has an engine of its own. vLLM ends what is global to its process with each, so they come last.

Rows = Counter[tuple[int, int]]
"""How often rows (slot, position) came by."""


def count_rows(talker: Any, part: str) -> Rows:
    """Counts the rows that a part of the talker is given from now on."""
    rows: Rows = Counter()
    call = getattr(talker, part)

    def counted(slots: Tensor, positions: Tensor, *others: Any) -> Any:
        rows.update(row for row in zip(slots.tolist(), positions.tolist(), strict=True) if row[0] != SCRATCH_SLOT)
        return call(slots, positions, *others)

    setattr(talker, part, counted)
    return rows


def by_chance(path: Path, seed: int) -> Path:
    """A checkpoint that says what its weights happen to say."""
    return write_tiny_checkpoint(path, seed=seed, stops_at_once=None, tie_word_embeddings=False, decoder_config=WIDE)


@pytest.mark.parametrize("ahead", [False, True])
def test_steps_without_a_frame_are_those_of_the_torch_engine_and_are_not_sent(tmp_path, request, ahead):
    if ahead:
        request.getfixturevalue("vllm_ahead")
    folder = by_chance(tmp_path, seed=48)
    requests = [
        request_of(folder, "stops", "Speaker 1: And then?", seed=5, frames=60),
        request_of(folder, "is cut", "Speaker 1: And then?", seed=5, frames=9),
        request_of(folder, "another", DIALOGUE, seed=7),
    ]
    plain = engine_of("torch", folder)
    made = count_rows(plain.talker, "emit")
    alone = {one.stream: run(plain, {0: [one]})[one.stream] for one in requests}
    assert {frames[-1].finish for frames in alone.values()} == {"stop", "length"}
    sent = sum(frame.patch is not None for frames in alone.values() for frame in frames)
    assert made.total() > sent + 5, "too few steps made no frame"
    together = run(engine_of("vllm", folder), {0: requests[:2], 3: requests[2:]})
    for stream, expected in alone.items():
        assert_same(together[stream], expected)
        assert all(frame.patch is not None and frame.patch[0, 0] == 1 for frame in together[stream][:-1])


def test_a_stream_that_never_makes_a_frame_is_an_error_and_frees_its_slot(tmp_path):
    folder = by_chance(tmp_path, seed=7)
    engine = engine_of("vllm", folder, length=192)
    made = count_rows(engine.talker, "emit")
    requests = [request_of(folder, str(seed), "Speaker 1: And then?", seed=seed) for seed in range(6)]
    frames = run(engine, {0: requests})
    assert max(position for _, position in made) == 190, "it ended before its positions did"
    for one in requests:
        (only,) = frames[one.stream]
        assert only.patch is None
        assert only.error is not None
        assert "before its first frame" in only.error.text
    assert engine.running == 0


@pytest.mark.parametrize(("kind", "ahead"), [("speaks on", False), ("by chance", False), ("by chance", True)])
def test_a_row_that_is_run_again_after_its_cache_was_taken_makes_nothing_twice(folder, tmp_path, request, kind, ahead):
    """What the decoder, the ear or the negative stream heard twice would change all that follows."""
    if ahead:
        request.getfixturevalue("vllm_ahead")
    if kind == "by chance":
        folder = by_chance(tmp_path, seed=11)
    requests = [
        request_of(folder, f"s{seed}", "So it is." + " And so." * seed, seed=seed, frames=60) for seed in range(4)
    ]
    plain = engine_of("torch", folder)
    alone = {one.stream: run(plain, {0: [one]})[one.stream] for one in requests}
    # Sixteen blocks, half of what the four need.
    position = talker_facts(folder).kv_shape.bytes_per_position(4)
    narrow = engine_of("vllm", folder, length=256, kv_cache_bytes=16 * 32 * position)
    ran, made = count_rows(narrow.talker, "hidden"), count_rows(narrow.talker, "emit")
    together = run(narrow, {0: requests})
    assert max(ran[row] for row in made) > 1, "no row of speech was run again"
    assert set(made.values()) == {1}
    for stream, expected in alone.items():
        assert_same(together[stream], expected)
