"""The talker whose patches are made elsewhere, and what makes them: as one, they are the talker that makes its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from tests.unit.recorders import again
from torch import Tensor

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.errors import SpeechError
from triton_speech.families.voxcpm2 import load_diffusion, load_talker
from triton_speech.families.voxcpm2.diffusion import VoxCPM2Diffusion
from triton_speech.families.voxcpm2.diffusion_graphs import SolveGraphs
from triton_speech.families.voxcpm2.prompt import Prompt
from triton_speech.families.voxcpm2.talker import Sampling
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

FRAMES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


class Elsewhere:
    """The diffusion on the other side, called as the talker calls its stage; rows are grouped as there."""

    def __init__(self, folder: Path) -> None:
        self.diffusion: VoxCPM2Diffusion = load_diffusion(folder, device="cpu", dtype="float32")
        self.calls: list[Mapping[str, Tensor]] = []
        self.error: SpeechError | None = None

    def __call__(self, rows: Mapping[str, Tensor]) -> Tensor:
        self.calls.append(rows)
        if self.error is not None:
            raise self.error
        steps = rows["INFERENCE_STEPS"].squeeze(1)
        patches = torch.empty_like(rows["COND"])
        for key in steps.unique().tolist():
            where = steps == key
            patches[where] = self.diffusion.solve({name: values[where] for name, values in rows.items()}, key)
        return patches


@pytest.fixture
def elsewhere(folder: Path) -> Elsewhere:
    return Elsewhere(folder)


def requests(count: int) -> list[TalkerRequest]:
    """Streams of all kinds; the seeds fill all 64 bits."""
    return [
        TalkerRequest(
            str(n),
            Prompt(list(range(3 + n, 20 + n)), None, None),
            Sampling(2**64 - 1 - n, cfg_value=float(n), inference_steps=(4, 10, 2)[n % 3]),
            FRAMES,
        )
        for n in range(count)
    ]


def run(folder: Path, asked: list[TalkerRequest], diffuse: Elsewhere | None = None, **options: bool) -> dict:
    engine, _ = build_engine(EngineChoice(diffuse=diffuse), EngineOptions(**options), "voxcpm2", folder)
    for request in asked:
        engine.add(request)
    frames: dict[str, list[Frame]] = {request.stream: [] for request in asked}
    while not engine.is_idle:
        for frame in engine.step():
            frames[frame.stream].append(frame)
    return frames


def run_captured(folder: Path, asked: list[TalkerRequest], diffuse: Elsewhere | None, **options: bool) -> dict:
    """The same through graphs, which must hold every step."""
    limits = EngineOptions(**options)
    talker = load_talker(folder, slots=slots_needed(limits), device="cpu", dtype=None, length=None, diffuse=diffuse)
    engine = TorchEngine(talker, limits, 10, again, mixes_up_to=None if diffuse is None else 10)
    frames: dict[str, list[Frame]] = {request.stream: [] for request in asked}
    for request in asked:
        engine.add(request)
    while not engine.is_idle:
        for frame in engine.step():
            frames[frame.stream].append(frame)
    assert engine.graph_uses["decode"].replays > 0
    assert engine.graph_uses["decode"].fallbacks == 0
    return frames


def patches(frames: list[Frame]) -> Tensor:
    return torch.stack([frame.patch for frame in frames if frame.patch is not None])


@pytest.mark.parametrize("deterministic", [False, True])
def test_patches_that_are_made_elsewhere_are_those_that_the_talker_makes(
    folder: Path, elsewhere: Elsewhere, deterministic: bool
) -> None:
    for request in requests(3):
        ours = run(folder, [request], elsewhere, deterministic=deterministic)[request.stream]
        wanted = run(folder, [request], deterministic=deterministic)[request.stream]
        assert [frame.finish for frame in ours] == [frame.finish for frame in wanted]
        assert (patches(ours) - patches(wanted)).abs().max() <= 1e-5


def test_a_step_makes_one_call_with_a_row_for_each_stream_and_none_for_padding(
    folder: Path, elsewhere: Elsewhere
) -> None:
    frames = run(folder, requests(5), elsewhere, deterministic=True)
    assert all(one[-1].finish == "length" for one in frames.values())
    assert [len(rows["MU"]) for rows in elsewhere.calls] == [5] * FRAMES
    assert elsewhere.calls[0]["POSITION"].squeeze(1).tolist() == [0] * 5
    assert elsewhere.calls[-1]["POSITION"].squeeze(1).tolist() == [FRAMES - 1] * 5


def test_a_stream_that_is_no_number_any_more_ends_alone(folder: Path, elsewhere: Elsewhere) -> None:
    """The stage would refuse the whole call for one such row."""
    engine, talker = build_engine(EngineChoice(diffuse=elsewhere), EngineOptions(), "voxcpm2", folder)
    for request in requests(3):
        engine.add(request)
    engine.step()
    talker.inputs[engine._running["1"].slot] = torch.nan
    ends = {}
    while not engine.is_idle:
        ends |= {frame.stream: frame for frame in engine.step() if frame.is_last}
    assert "NaN or infinite" in ends["1"].error.text
    assert [ends[name].finish for name in ("0", "2")] == ["length"] * 2
    assert all(rows["MU"].isfinite().all() for rows in elsewhere.calls)
    assert len(elsewhere.calls[-1]["MU"]) == 2


def test_a_stage_that_fails_ends_the_streams_of_the_step_with_its_own_words(folder: Path, elsewhere: Elsewhere) -> None:
    engine, _ = build_engine(EngineChoice(diffuse=elsewhere), EngineOptions(), "voxcpm2", folder)
    for request in requests(3):
        engine.add(request)
    engine.step()
    elsewhere.error = SpeechError("UNAVAILABLE", "the diffusion stage has died")
    assert [frame.error for frame in engine.step()] == [elsewhere.error] * 3
    assert engine.is_idle
    elsewhere.error = None
    engine.add(requests(1)[0])
    assert engine.step()[0].error is None


def test_more_steps_than_the_stage_takes_are_refused_before_they_share_a_call(
    folder: Path, elsewhere: Elsewhere
) -> None:
    engine, _ = build_engine(EngineChoice(diffuse=elsewhere, most=9), EngineOptions(), "voxcpm2", folder)
    with pytest.raises(SpeechError, match="INFERENCE_STEPS: is 10, this engine runs at most 9"):
        engine.add(requests(2)[1])


def test_a_talker_without_diffusion_holds_none_of_its_weights(folder: Path, elsewhere: Elsewhere) -> None:
    _, talker = build_engine(EngineChoice(diffuse=elsewhere), EngineOptions(), "voxcpm2", folder)
    on_meta = {name for name, weight in talker.model.named_parameters() if weight.is_meta}
    assert on_meta
    assert {name.partition(".")[0] for name in on_meta} == {"feat_decoder"}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_captured_steps_make_what_plain_steps_make(
    folder: Path, elsewhere: Elsewhere, apart: bool, deterministic: bool
) -> None:
    """Of a talker that makes its patches in its graphs, and of one whose states alone are in them."""
    elsewhere.diffusion.capture(8, again)
    for asked in ([requests(1)[0]], requests(5)):
        ours = run_captured(folder, asked, elsewhere if apart else None, deterministic=deterministic)
        wanted = run(folder, asked, deterministic=deterministic)
        for stream, frames in wanted.items():
            assert [frame.finish for frame in ours[stream]] == [frame.finish for frame in frames]
            # A last bit may flip a level of the quantiser in what follows.
            first = patches(ours[stream])[0] - patches(frames)[0]
            assert first.abs().max() <= 1e-4
        if len(asked) == 1:
            assert (patches(ours["0"]) - patches(wanted["0"])).abs().max() <= 1e-4
    assert (elsewhere.diffusion.graph_use.replays > 0) == apart
    assert elsewhere.diffusion.graph_use.fallbacks == 0


def test_a_batch_takes_the_smallest_graph_that_holds_it_and_none_where_none_does() -> None:
    solved = []

    def solve(rows: Mapping[str, Tensor]) -> Tensor:
        solved.append(len(rows["MU"]))
        return rows["MU"] + rows["SEED"]

    blank = {"MU": torch.zeros(6, 2), "SEED": torch.zeros(6, 1, dtype=torch.int64)}
    graphs = SolveGraphs(solve, blank, again)
    assert set(solved) == {1, 2, 4, 6}
    solved.clear()
    rows = {"MU": torch.arange(6.0).view(3, 2), "SEED": torch.tensor([[10], [20], [30]])}
    made = graphs.run(rows)
    assert made is not None
    assert torch.equal(made, rows["MU"] + rows["SEED"])
    assert solved == [4]
    assert graphs.run({name: torch.cat([column] * 3) for name, column in rows.items()}) is None


def test_rounds_that_cannot_be_captured_are_run_without_graphs(folder: Path, elsewhere: Elsewhere) -> None:
    def refuse(work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("not here")

    elsewhere.diffusion.capture(8, refuse)
    (wanted,) = run(folder, requests(1)).values()
    (ours,) = run(folder, requests(1), elsewhere).values()
    assert (patches(ours) - patches(wanted)).abs().max() <= 1e-5
    assert elsewhere.diffusion.graph_use.replays == 0
    assert elsewhere.diffusion.graph_use.fallbacks == FRAMES


def test_batches_of_more_steps_than_the_graphs_have_run_without_them(elsewhere: Elsewhere) -> None:
    elsewhere.diffusion.capture(8, again)
    rows = elsewhere.diffusion._blank(2)
    usual = elsewhere.diffusion.solve(rows, 10)
    more = elsewhere.diffusion.solve(rows | {"INFERENCE_STEPS": torch.full((2, 1), 20)}, 20)
    assert not torch.equal(usual, more)
    assert (elsewhere.diffusion.graph_use.replays, elsewhere.diffusion.graph_use.fallbacks) == (1, 1)
