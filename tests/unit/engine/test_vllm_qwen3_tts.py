"""Qwen3-TTS on vLLM: the same seed gives the codes of the torch engine. Runs where vLLM is installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm", reason="vLLM is not installed here (make test-vllm has an environment of its own)")

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.engine.slots import SCRATCH_SLOT
from triton_speech.families.qwen3_tts import load_frontend, talker, talker_facts
from triton_speech.families.qwen3_tts.frontend import FrontendParameters
from triton_speech.families.qwen3_tts.prompt import Prompt
from triton_speech.families.qwen3_tts.settings import Sampling
from triton_speech.families.qwen3_tts.tiny import write_tiny_checkpoint

from .conftest import run

FRAMES = 50
OPTIONS = EngineOptions(max_num_seqs=4, max_waiting=8, prefill_budget=16, prefill_chunk=16)
LONG = "This one is much longer than all of the others, so that its text trails behind for a while."
GREEDY = {"temperature": 0.0, "codes_temperature": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), kind="base")


@pytest.fixture(scope="module")
def vllm_engine(folder: Path) -> Any:
    """One engine for the module: vLLM takes seconds to start."""
    return engine_of("vllm", folder)


@pytest.fixture
def torch_engine(folder: Path) -> Any:
    return engine_of("torch", folder)


def engine_of(kind: str, folder: Path, **how: Any) -> Any:
    return build_engine(EngineChoice(kind, length=how.pop("length", 256), **how), OPTIONS, "qwen3_tts", folder)[0]


def request_of(
    folder: Path,
    stream: str,
    text: str = "So it is.",
    *,
    recording: int = 0,
    non_streaming: bool = False,
    frames: int = FRAMES,
    seed: int = 0,
    **sampling: float,
) -> TalkerRequest:
    """A stream that continues a recording of so many frames, or has a voice alone."""
    words = load_frontend(folder, FrontendParameters()).words(
        text, reference_text="And so we met." if recording else None, non_streaming=non_streaming
    )
    source = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 64, (recording, 16), generator=source) if recording else None
    vector = 0.1 * torch.randn(words.vector_size, generator=source)
    return TalkerRequest(stream, Prompt(words, vector, codes), Sampling(seed, **sampling), frames)  # type: ignore[arg-type]


def mixed(folder: Path) -> list[TalkerRequest]:
    """Both ways of hearing text, voices and continuations, prompts of several steps, drawn in many ways."""
    return [
        request_of(folder, "greedy", **GREEDY),
        request_of(folder, "defaults", seed=2**63 + 5),
        request_of(folder, "continued", recording=20, seed=3, top_k=5, top_p=0.7, repetition_penalty=1.5),
        request_of(folder, "trailing", LONG, seed=4, codes_top_k=0, codes_top_p=0.9),
        request_of(folder, "all at once", LONG, non_streaming=True, seed=5, temperature=1.7, top_k=0),
        request_of(folder, "continued at once", LONG, recording=9, non_streaming=True, seed=6, repetition_penalty=2.0),
    ]


def codes(frames: list[Frame]) -> Tensor:
    """(T, G) of one stream."""
    return torch.stack([frame.patch[0] for frame in frames if frame.patch is not None])


def test_greedy_codes_are_those_of_the_torch_engine(vllm_engine, torch_engine, folder):
    one = request_of(folder, "one", **GREEDY)
    expected, got = (codes(run(engine, {0: [one]})["one"]) for engine in (torch_engine, vllm_engine))
    assert got.shape == (FRAMES, 16)
    assert torch.equal(got, expected)


def test_streams_at_different_positions_have_the_codes_of_the_torch_engine(vllm_engine, torch_engine, folder):
    requests = mixed(folder)
    alone = {one.stream: run(torch_engine, {0: [one]})[one.stream] for one in requests}
    together = run(vllm_engine, {0: requests[:2], 3: requests[2:4], 9: requests[4:]})
    for stream, expected in alone.items():
        assert torch.equal(codes(together[stream]), codes(expected)), stream
        assert [frame.finish for frame in together[stream]] == [frame.finish for frame in expected]
    assert len({str(codes(frames).tolist()) for frames in together.values()}) == len(requests)


def test_a_seed_gives_the_same_codes_and_another_gives_others(vllm_engine, folder):
    made = [codes(run(vllm_engine, {0: [request_of(folder, "s", frames=12, seed=seed)]})["s"]) for seed in (5, 5, 6)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_cancel_frees_slot_and_cache_at_once(vllm_engine, torch_engine, folder):
    for index in range(4):
        vllm_engine.add(request_of(folder, f"long{index}", frames=200, seed=index))
    after = request_of(folder, "next", frames=20, seed=7)
    vllm_engine.add(after)
    for _ in range(6):
        vllm_engine.step()
    for index in range(4):
        vllm_engine.cancel(f"long{index}")
    frames = vllm_engine.step()
    assert {frame.stream for frame in frames if frame.finish == "cancelled"} == {f"long{index}" for index in range(4)}
    frames += run(vllm_engine, {0: []})["next"]
    made = codes([frame for frame in frames if frame.stream == "next"])
    assert torch.equal(made, codes(run(torch_engine, {0: [after]})["next"]))


def test_a_state_that_is_not_finite_ends_its_stream_alone(vllm_engine, folder):
    for stream in ("sick", "well"):
        vllm_engine.add(request_of(folder, stream, frames=20))
    vllm_engine.step()
    vllm_engine.talker.inputs[vllm_engine._running["sick"].slot] = torch.nan
    heard = run(vllm_engine, {0: []})
    assert heard["sick"][-1].error is not None
    assert "NaN" in heard["sick"][-1].error.text
    assert heard["well"][-1].finish == "length"


# Below, each test has an engine of its own. vLLM ends what is global to its process with each, so they come last.


def test_a_slot_forgets_what_its_last_stream_has_said(folder):
    options = replace(OPTIONS, max_num_seqs=1)
    engine, _ = build_engine(EngineChoice("vllm", length=128), options, "qwen3_tts", folder)
    one = request_of(folder, "one", frames=20, seed=5, repetition_penalty=2.0)
    first = codes(run(engine, {0: [one]})["one"])
    other = request_of(folder, "other", recording=9, frames=30, seed=9)
    frames = run(engine, {0: [other, one]})
    assert torch.equal(codes(frames["one"]), first)


@pytest.fixture
def stopping(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path, stops_at_once=True)


def test_an_end_makes_no_frame_and_comes_after_two(stopping):
    frames = run(engine_of("vllm", stopping), {0: [request_of(stopping, "one")]})["one"]
    assert [(frame.patch is not None, frame.finish) for frame in frames] == [(True, ""), (True, ""), (False, "stop")]


@pytest.mark.usefixtures("vllm_ahead")
def test_the_step_that_was_begun_before_an_end_was_seen_harms_nothing(stopping):
    """Its row holds the end token, which is the number of no slot."""
    engine = engine_of("vllm", stopping)
    frames = run(engine, {0: [request_of(stopping, str(index), seed=index) for index in range(6)]})
    for ended in frames.values():
        assert [(frame.patch is not None, frame.finish) for frame in ended] == [(True, ""), (True, ""), (False, "stop")]


def test_an_end_at_the_first_step_is_an_error_and_frees_its_slot(stopping, monkeypatch):
    monkeypatch.setattr(talker, "MIN_FRAMES", 0)
    engine = engine_of("vllm", stopping)
    for index in range(2 * OPTIONS.max_num_seqs):
        (frame,) = run(engine, {0: [request_of(stopping, str(index))]})[str(index)]
        assert frame.error is not None
        assert "before its first frame" in frame.error.text
        assert frame.patch is None


Rows = Counter[tuple[int, int]]
"""How often rows (slot, position) came by."""


@pytest.fixture
def narrow_engine(folder: Path) -> Any:
    """A cache of eight blocks, half of what four streams need; ``ran`` and ``made`` are the rows of its talker."""
    position = talker_facts(folder).kv_shape.bytes_per_position(4)
    engine = engine_of("vllm", folder, length=160, kv_cache_bytes=8 * 32 * position)

    def counted(call: Callable[..., Any], rows: Rows) -> Callable[..., Any]:
        def run(slots: Tensor, positions: Tensor, *others: Any) -> Any:
            rows.update(row for row in zip(slots.tolist(), positions.tolist(), strict=True) if row[0] != SCRATCH_SLOT)
            return call(slots, positions, *others)

        return run

    engine.ran, engine.made = Counter(), Counter()
    engine.talker.hidden = counted(engine.talker.hidden, engine.ran)
    engine.talker.emit = counted(engine.talker.emit, engine.made)
    return engine


def test_a_frame_that_is_run_again_after_its_cache_was_taken_is_not_made_twice(narrow_engine, torch_engine, folder):
    """A code that counted twice for the penalty, or was added twice to its text, would change what follows."""
    requests = [
        request_of(folder, f"s{seed}", LONG, recording=6 * seed + 1, seed=seed, frames=60, **GREEDY)
        for seed in range(4)
    ]
    alone = {one.stream: codes(run(torch_engine, {0: [one]})[one.stream]) for one in requests}
    together = run(narrow_engine, {0: requests})
    assert max(narrow_engine.ran[row] for row in narrow_engine.made) > 1, "no row of speech was run again"
    assert len(narrow_engine.made) == 4 * 60
    assert set(narrow_engine.made.values()) == {1}
    for one in requests:
        assert torch.equal(codes(together[one.stream]), alone[one.stream]), one.stream
