"""Whatever else runs, a stream gets what it gets alone."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from triton_speech.families.voxcpm2.talker import SlotTalker

from .conftest import patches, request, run

STEPS = 40


class TeacherForced(SlotTalker):
    """Feeds every stream a fixed sequence of patches, whatever the model made: errors cannot add up."""

    def emit(self, slots: Tensor, positions: Tensor, *args: object) -> tuple[Tensor, Tensor]:
        made, stops = super().emit(slots, positions, *args)
        frames = positions + 1 - self.prompt_length[slots]
        forced = [
            torch.randn(self.patch_shape, generator=torch.Generator().manual_seed(1000 * int(seed) + int(frame)))
            for seed, frame in zip(self.seed[slots], frames, strict=True)
        ]
        self.write_patches(slots, positions + 1, torch.stack(forced).to(made.dtype))
        return made, torch.zeros_like(stops)


def mixed_requests(frames: int) -> list:
    """All four modes, short and long prompts, two step counts, different guidance."""
    return [
        request("zero-shot", seed=1, frames=frames),
        request("reference", seed=2, reference=20, frames=frames),
        request("continuation", seed=3, prompt=9, frames=frames, cfg_value=1.5),
        request("both", seed=4, reference=15, prompt=7, frames=frames, steps=6),
        request("long", seed=5, tokens=90, frames=frames),
        request("short", seed=6, tokens=1, frames=frames, cfg_value=3.0),
    ]


@pytest.mark.parametrize("shuffle", range(3))
def test_any_mix_of_arrivals_equals_solo_when_fed_the_same(make_engine, shuffle):
    requests = mixed_requests(STEPS)
    solo = {one.stream: patches(run(make_engine(TeacherForced), {0: [one]})[one.stream]) for one in requests}
    order = random.Random(shuffle)
    arrivals: dict[int, list] = {}
    for one in order.sample(requests, len(requests)):
        arrivals.setdefault(order.randrange(0, 30), []).append(one)
    # Small chunks and a small budget: prompts are split and run between the others' steps.
    together = run(make_engine(TeacherForced, prefill_chunk=16, prefill_budget=16), arrivals)
    for stream, expected in solo.items():
        got = patches(together[stream])
        assert got.shape[0] == STEPS
        assert (got - expected).abs().amax(dim=(1, 2)).max() < 1e-4, stream


def test_deterministic_streams_are_the_same_bits_alone_and_in_company(make_engine):
    requests = mixed_requests(STEPS)
    options = {"deterministic": True, "max_num_seqs": 6, "prefill_chunk": 32}
    solo = {one.stream: patches(run(make_engine(**options), {0: [one]})[one.stream]) for one in requests}
    for shuffle in range(3):
        order = random.Random(shuffle)
        arrivals: dict[int, list] = {}
        for one in order.sample(requests, len(requests)):
            arrivals.setdefault(order.randrange(0, 30), []).append(one)
        together = run(make_engine(**options), arrivals)
        for stream, expected in solo.items():
            assert torch.equal(patches(together[stream]), expected), stream


def test_chunked_prefill_equals_one_piece(make_engine):
    one = request("a", tokens=90, reference=30, frames=8, seed=3)
    whole = patches(run(make_engine(TeacherForced, prefill_chunk=512, prefill_budget=512), {0: [one]})["a"])
    pieces = patches(run(make_engine(TeacherForced, prefill_chunk=7, prefill_budget=7), {0: [one]})["a"])
    assert torch.allclose(whole, pieces, atol=1e-5)


def test_a_slot_forgets_its_last_stream(make_engine):
    first = request("first", seed=1, reference=40, prompt=30, frames=30)
    second = request("second", seed=2, frames=10)
    fresh = patches(run(make_engine(max_num_seqs=1), {0: [second]})["second"])
    reused = run(make_engine(max_num_seqs=1), {0: [first, second]})
    assert torch.equal(patches(reused["second"]), fresh)


def test_frames_own_their_storage(make_engine):
    engine = make_engine()
    engine.add(request("a", frames=6))
    kept = [frame for _ in range(3) for frame in engine.step()]
    copies = [frame.patch.clone() for frame in kept]
    while not engine.is_idle:
        engine.step()
    assert all(torch.equal(frame.patch, copy) for frame, copy in zip(kept, copies, strict=True))


def test_seed_alone_decides_the_noise(make_engine):
    frames = run(make_engine(), {0: [request("a", seed=7), request("b", seed=7)], 3: [request("c", seed=8)]})
    assert torch.allclose(patches(frames["a"]), patches(frames["b"]), atol=1e-4)
    assert not torch.allclose(patches(frames["a"]), patches(frames["c"]), atol=1e-2)
