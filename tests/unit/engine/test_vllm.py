"""The vLLM engine gives what the torch engine gives. Runs where vLLM is installed: ``make test-vllm``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm", reason="vLLM is not installed here (make test-vllm has an environment of its own)")

from triton_speech.engine.api import EngineOptions
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.engine.slots import SCRATCH_SLOT
from triton_speech.errors import SpeechError
from triton_speech.families.registry import load_family
from triton_speech.families.voxcpm2.minicpm import Attend
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

from .conftest import patches, request, run
from .test_batching import STEPS, TeacherForced, mixed_requests

OPTIONS = EngineOptions(max_num_seqs=4, max_waiting=2, prefill_budget=32)


class RecordingTeacher(TeacherForced):
    """The engine hands out what the buffers hold, which is what was forced; so what was made is kept here."""

    made: dict[tuple[int, int], Tensor]

    def emit(self, slots: Tensor, positions: Tensor, *args: object) -> tuple[Tensor, Tensor]:
        patches, stops = super().emit(slots, positions, *args)
        frames = positions + 1 - self.prompt_length[slots]
        for slot, seed, frame, patch in zip(slots, self.seed[slots], frames, patches, strict=True):
            if slot != SCRATCH_SLOT:
                self.made[int(seed), int(frame)] = patch.clone()
        return patches, stops


@pytest.fixture(scope="module")
def vllm_engine(tmp_path_factory: pytest.TempPathFactory):
    """One engine for the module: vLLM takes seconds to start."""
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    engine, talker = build_engine(EngineChoice("vllm"), OPTIONS, "voxcpm2", folder)
    talker.model.stop_head.weight.zero_()
    return engine


def test_any_mix_of_arrivals_equals_the_torch_engine_when_fed_the_same(vllm_engine, make_engine):
    requests = mixed_requests(STEPS)
    alone = {one.stream: patches(run(make_engine(TeacherForced), {0: [one]})[one.stream]) for one in requests}
    talker = vllm_engine.talker
    own_class, talker.__class__ = talker.__class__, RecordingTeacher
    talker.made = {}
    try:
        run(vllm_engine, {0: requests[:2], 3: requests[2:4], 9: requests[4:]})
    finally:
        talker.__class__ = own_class
    for one in requests:
        got = torch.stack([talker.made[one.sampling.seed, frame] for frame in range(STEPS)])
        assert (got - alone[one.stream]).abs().amax(dim=(1, 2)).max() < 1e-4, one.stream


def test_a_stream_ends_with_length_at_its_cap(vllm_engine):
    frames = run(vllm_engine, {0: [request("capped", frames=5)]})["capped"]
    assert [frame.finish for frame in frames] == ["", "", "", "", "length"]


def test_fewer_steps_than_the_graphs_are_served_and_more_are_refused(vllm_engine, make_engine):
    one = request("few", frames=4, steps=3)
    expected = patches(run(make_engine(), {0: [one]})["few"])
    assert torch.allclose(patches(run(vllm_engine, {0: [one]})["few"]), expected, atol=1e-4)
    with pytest.raises(SpeechError, match=r"INFERENCE_STEPS: is 11, .* at most 10"):
        vllm_engine.add(request("many", steps=11))


def test_cancel_frees_slot_and_cache_at_once(vllm_engine):
    for index in range(4):
        vllm_engine.add(request(f"long{index}", frames=300))
    vllm_engine.add(request("next", frames=3))
    vllm_engine.step()
    for index in range(4):
        vllm_engine.cancel(f"long{index}")
    frames = vllm_engine.step()
    assert {f.stream for f in frames if f.finish == "cancelled"} == {f"long{index}" for index in range(4)}
    rest = run(vllm_engine, {0: []})
    assert rest["next"][-1].finish == "length"
    assert set(rest) == {"next"}


def test_more_streams_than_slots_wait_and_then_are_refused(vllm_engine):
    for index in range(6):
        vllm_engine.add(request(f"s{index}", frames=3))
    with pytest.raises(SpeechError, match="is full"):
        vllm_engine.add(request("one too many"))
    assert len(run(vllm_engine, {0: []})) == 6


def test_a_slot_forgets_its_last_stream(vllm_engine):
    one = request("again", frames=8, seed=5)
    first = patches(run(vllm_engine, {0: [one]})["again"])
    run(vllm_engine, {0: [request("between", seed=9, reference=30, prompt=20, frames=20)]})
    assert torch.allclose(patches(run(vllm_engine, {0: [one]})["again"]), first, atol=1e-5)


@pytest.mark.parametrize("most", [1, 3, 8, 12, 39, 64, 65])
def test_each_batch_has_a_graph_on_a_gpu(vllm_engine, monkeypatch, most):
    monkeypatch.setattr(vllm_engine, "options", EngineOptions(max_num_seqs=most))
    sizes = vllm_engine._graph_sizes()
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == most
    assert {1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64} & set(range(most)) <= set(sizes)


class CountingTeacher(RecordingTeacher):
    """Counts how often each row of a stream was run."""

    runs: dict[tuple[int, int], int]

    def hidden(self, slots: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        for slot, position in zip(slots, positions, strict=True):
            if slot != SCRATCH_SLOT:
                row = int(self.seed[slot]), int(position)
                self.runs[row] = self.runs.get(row, 0) + 1
        return super().hidden(slots, positions, attend)


@pytest.fixture
def narrow_engine(tmp_path):
    """A cache of eight blocks, which is half of what four streams of 80 positions need."""
    folder = write_tiny_checkpoint(tmp_path)
    position = load_family("voxcpm2").talker_facts(folder).kv_shape.bytes_per_position(4)
    choice = EngineChoice("vllm", length=160, kv_cache_bytes=8 * 32 * position)
    engine, talker = build_engine(choice, OPTIONS, "voxcpm2", folder)
    talker.model.stop_head.weight.zero_()
    return engine


def test_a_stream_that_had_to_give_up_its_cache_goes_on_as_if_it_had_not(narrow_engine, make_engine):
    """vLLM preempts some of the streams and runs their rows once more."""
    talker = narrow_engine.talker
    requests = [request(f"s{seed}", seed=seed, tokens=20 + 9 * seed, frames=STEPS) for seed in range(4)]
    alone = {one.stream: patches(run(make_engine(TeacherForced), {0: [one]})[one.stream]) for one in requests}
    talker.__class__ = CountingTeacher
    talker.made, talker.runs = {}, {}
    frames = run(narrow_engine, {0: requests})
    assert max(talker.runs.values()) > 1, "nothing was preempted"
    for one in requests:
        assert [frame.finish for frame in frames[one.stream]] == [""] * (STEPS - 1) + ["length"]
        got = torch.stack([talker.made[one.sampling.seed, frame] for frame in range(STEPS)])
        assert (got - alone[one.stream]).abs().amax(dim=(1, 2)).max() < 1e-4, one.stream


def test_what_a_stream_gone_wrong_left_in_the_cache_reaches_no_later_one(narrow_engine):
    one = request("sound", frames=60, seed=3)
    expected = patches(run(narrow_engine, {0: [one]})["sound"])
    for index in range(3):
        narrow_engine.add(request(f"wrong{index}", frames=100))
    narrow_engine.step()
    narrow_engine.talker.inputs.fill_(float("nan"))
    wrong = run(narrow_engine, {0: []})
    assert all(frames[-1].error is not None for frames in wrong.values())
    assert torch.allclose(patches(run(narrow_engine, {0: [one]})["sound"]), expected, atol=1e-5)


def test_deterministic_streams_are_the_same_bits_alone_and_in_company(tmp_path):
    """Also where prompts are longer than what a step may take, so that company decides where they are cut."""
    folder = write_tiny_checkpoint(tmp_path)
    options = EngineOptions(max_num_seqs=4, prefill_budget=32, deterministic=True)
    engine, talker = build_engine(EngineChoice("vllm"), options, "voxcpm2", folder)
    talker.model.stop_head.weight.zero_()
    requests = mixed_requests(30)
    alone = {one.stream: patches(run(engine, {0: [one]})[one.stream]) for one in requests}
    together = run(engine, {0: requests[:2], 3: requests[2:4], 9: requests[4:]})
    for one in requests:
        assert torch.equal(patches(together[one.stream]), alone[one.stream]), one.stream


def test_fewer_guided_steps_are_the_same_in_both_engines(tmp_path):
    folder = write_tiny_checkpoint(tmp_path / "tiny")
    one = request("half", frames=1, steps=10)
    got = {}
    for kind, ratio in (("vllm", 0.5), ("torch", 0.5), ("torch", 1.0)):
        choice = EngineChoice(kind, talker_options={"cfg_cutoff_ratio": ratio})
        got[kind, ratio] = patches(run(build_engine(choice, OPTIONS, "voxcpm2", folder)[0], {0: [one]})["half"])
    torch.testing.assert_close(got["vllm", 0.5], got["torch", 0.5], atol=1e-4, rtol=0)
    assert (got["torch", 0.5] - got["torch", 1.0]).abs().max() > 1e-3
