"""Captured steps: which graph a batch takes, what it computes there, and what runs without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.recorders import again
from torch import Tensor

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.step_graphs import StepGraphs, graph_shapes
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.vibevoice import load_frontend, load_talker, make_prompt, make_sampling
from triton_speech.families.vibevoice.frontend import FrontendParameters
from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint
from triton_speech.request import SpeechRequest

from .conftest import run

TEXTS = ("Hello.", "Another one, which is longer than the first.", "Speaker 1: So?\nSpeaker 2: So.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def engine_of(folder: Path, *, graphs: int | None = None, length: int = 1100, **options: Any) -> TorchEngine:
    limits = EngineOptions(**{"max_num_seqs": 3, **options})
    talker = load_talker(folder, slots=slots_needed(limits), device="cpu", dtype=None, length=length)
    return TorchEngine(talker, limits, graphs, again)


def requests(folder: Path, steps: int = 10) -> list[TalkerRequest]:
    frontend = load_frontend(folder, FrontendParameters())
    return [
        TalkerRequest(
            str(index),
            make_prompt(frontend.prepare(SpeechRequest(text)).tokens, None, None),
            make_sampling(index, {"INFERENCE_STEPS": steps}),
            12,
        )
        for index, text in enumerate(TEXTS)
    ]


def samples(frames: list[Frame]) -> Tensor:
    return torch.stack([frame.patch for frame in frames if frame.patch is not None])


def test_every_batch_has_a_graph_and_the_largest_is_captured_first() -> None:
    shapes = graph_shapes(20, 3000)
    assert shapes[0] == (20, 3000)
    assert {reach for _, reach in shapes} == {512, 1024, 2048, 3000}
    assert {rows for rows, _ in shapes} == {1, 2, 4, 8, 16, 20}
    assert graph_shapes(1, 512) == [(1, 512)]


def test_a_batch_takes_the_graph_with_the_fewest_rows_that_reaches_far_enough() -> None:
    def step(slots: Tensor, positions: Tensor, longest: int) -> Tensor:
        return torch.stack((slots, positions, torch.full_like(slots, longest)), dim=1).float()

    graphs = StepGraphs(step, graph_shapes(4, 2000), 10, torch.device("cpu"), again)
    assert graphs.fitting(3, 511) == (4, 512)
    assert graphs.fitting(1, 512) == (1, 1024)
    assert graphs.fitting(5, 3) is None
    made = graphs.run([(7, 600), (9, 20), (2, 3)], 600, 10)
    assert made is not None
    assert made.tolist() == [[7, 600, 1023], [9, 20, 1023], [2, 3, 1023]]
    other = graphs.run([(1, 1)], 1, 4)
    assert other is not None
    assert made[0, 0] == 7, "a later step writes into what an earlier one handed out"
    assert graphs.run([(1, 1)], 1, 11) is None
    assert graphs.run([(1, 2000)], 2000, 10) is None
    assert (graphs.use.replays, graphs.use.fallbacks) == (2, 2)


@pytest.mark.parametrize("deterministic", [False, True])
def test_captured_steps_make_what_plain_steps_make(folder: Path, deterministic: bool) -> None:
    plain = run(engine_of(folder, deterministic=deterministic), {0: requests(folder)})
    engine = engine_of(folder, graphs=10, deterministic=deterministic)
    captured = run(engine, {0: requests(folder)})
    for stream, frames in plain.items():
        torch.testing.assert_close(samples(captured[stream]), samples(frames), atol=1e-4, rtol=1e-3)
        assert [frame.finish for frame in captured[stream]] == [frame.finish for frame in frames]
    use = engine.graph_uses["decode"]
    assert use.replays > 0
    assert use.fallbacks == 0


def test_a_step_that_no_graph_fits_runs_without_and_is_counted(folder: Path) -> None:
    plain = run(engine_of(folder), {0: requests(folder, steps=12)})
    engine = engine_of(folder, graphs=10)
    made = run(engine, {0: requests(folder, steps=12)})
    assert engine.graph_uses["decode"].replays == 0
    assert engine.graph_uses["decode"].fallbacks > 0
    for stream, frames in plain.items():
        assert torch.equal(samples(made[stream]), samples(frames))


def test_a_stream_that_broke_in_a_graph_does_not_reach_the_others(folder: Path) -> None:
    expected = run(engine_of(folder, graphs=10), {0: requests(folder)})
    engine = engine_of(folder, graphs=10)
    for one in requests(folder):
        engine.add(one)
    heard = {frame.stream: [frame] for frame in engine.step()}
    engine.talker.inputs[engine._running["0"].slot] = torch.nan
    for stream, frames in run(engine, {0: []}).items():
        heard.setdefault(stream, []).extend(frames)
    assert heard["0"][-1].error is not None
    for stream in ("1", "2"):
        torch.testing.assert_close(samples(heard[stream]), samples(expected[stream]), atol=1e-4, rtol=1e-3)
