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
