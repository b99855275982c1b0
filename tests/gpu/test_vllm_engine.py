"""The vLLM engine on a GPU: its graphs give what plain steps give, and what was handed out stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here")

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.families.voxcpm2.prompt import Prompt
from triton_speech.families.voxcpm2.talker import Sampling
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

OPTIONS = EngineOptions(max_num_seqs=8, prefill_budget=64)
FRAMES = 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # FlashAttention computes in bfloat16 and knows no narrower heads of use.
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), head_dim=64, dtype="bfloat16")


@pytest.fixture(scope="module")
def engine(checkpoint: Path):
    choice = EngineChoice("vllm", device="cuda", kv_cache_bytes=1 << 28)
    engine, talker = build_engine(choice, OPTIONS, "voxcpm2", checkpoint)
    talker.model.stop_head.weight.zero_()
    return engine


def request(index: int, frames: int = FRAMES) -> TalkerRequest:
    source = torch.Generator().manual_seed(index)
    tokens = torch.randint(3, 90, (10 + 17 * index,), generator=source).tolist()
    reference = torch.randn(6, 2, 8, generator=source) if index % 2 else None
    return TalkerRequest(f"s{index}", Prompt(tokens, reference), Sampling(index), frames)


def run(engine, arrivals: dict[int, list[TalkerRequest]]) -> dict[str, torch.Tensor]:
    out: dict[str, list[torch.Tensor]] = {}
    step = 0
    while step <= max(arrivals) or not engine.is_idle:
        for one in arrivals.get(step, []):
            engine.add(one)
        for frame in engine.step():
            out.setdefault(frame.stream, []).append(frame.patch)
        step += 1
    return {stream: torch.stack(frames) for stream, frames in out.items()}


def test_first_frames_are_those_of_the_torch_engine(engine, checkpoint):
    """The first frame of a stream has no feedback in it yet, so rounding cannot have added up."""
    torch_engine, _ = build_engine(EngineChoice("torch", device="cuda"), OPTIONS, "voxcpm2", checkpoint)
    requests = [request(index, frames=1) for index in range(6)]
    expected = run(torch_engine, {0: requests})
    got = run(engine, {0: requests[:2], 1: requests[2:]})
    for stream, patches in expected.items():
        torch.testing.assert_close(got[stream], patches, rtol=0.1, atol=0.1)


def test_streams_that_arrive_while_others_decode_all_come_to_their_end(engine):
    got = run(engine, {0: [request(0)], 5: [request(1), request(2)], 9: [request(index) for index in range(3, 8)]})
    assert {stream: len(patches) for stream, patches in got.items()} == {f"s{index}": FRAMES for index in range(8)}
    assert all(patches.isfinite().all() for patches in got.values())


def test_the_same_stream_is_the_same_through_graphs_again(engine):
    once, again = (run(engine, {0: [request(3)]})["s3"] for _ in range(2))
    assert torch.equal(once, again)


def test_what_was_handed_out_is_not_overwritten_by_later_steps(engine):
    engine.add(request(1))
    kept = [frame.patch for _ in range(6) for frame in engine.step()]
    copies = [patch.clone() for patch in kept]
    while not engine.is_idle:
        engine.step()
    assert kept
    assert all(torch.equal(patch, copy) for patch, copy in zip(kept, copies, strict=True))


def test_graphs_give_what_plain_steps_give(engine, checkpoint):
    """Prompts of all lengths, alone and beside others; first frames, as above."""
    plain, talker = build_engine(
        EngineChoice("vllm", device="cuda", kv_cache_bytes=1 << 28, graphs=False), OPTIONS, "voxcpm2", checkpoint
    )
    talker.model.stop_head.weight.zero_()
    requests = [request(index, frames=1) for index in range(8)]
    expected = run(plain, {index: [one] for index, one in enumerate(requests)})
    for arrivals in ({0: requests}, {index: [one] for index, one in enumerate(requests)}):
        got = run(engine, arrivals)
        for stream, patches in expected.items():
            torch.testing.assert_close(got[stream], patches, rtol=0.1, atol=0.1)


def test_what_a_stream_gone_wrong_left_in_the_cache_reaches_no_later_one(engine):
    before = run(engine, {0: [request(3)]})["s3"]
    models: list = []
    engine._engine.apply_model(models.append)
    for layer in models[0].attention:
        layer.kv_cache.fill_(float("nan"))
    assert torch.equal(run(engine, {0: [request(3)]})["s3"], before)


def test_deterministic_streams_are_the_same_bits_alone_and_in_company(checkpoint):
    options = EngineOptions(max_num_seqs=8, prefill_budget=64, deterministic=True)
    choice = EngineChoice("vllm", device="cuda", kv_cache_bytes=1 << 28)
    engine, talker = build_engine(choice, options, "voxcpm2", checkpoint)
    talker.model.stop_head.weight.zero_()
    requests = [request(index) for index in range(8)]
    alone = {one.stream: run(engine, {0: [one]})[one.stream] for one in requests}
    together = run(engine, {0: requests[:3], 4: requests[3:4], 9: requests[4:]})
    for stream, patches in alone.items():
        assert torch.equal(together[stream], patches), stream


def test_a_second_gpu_serves_as_the_first_does(engine, checkpoint):
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device here, two are needed")
    choice = EngineChoice("vllm", device="cuda:1", kv_cache_bytes=1 << 28)
    with torch.cuda.device(1):
        other, talker = build_engine(choice, OPTIONS, "voxcpm2", checkpoint)
        assert talker.device == torch.device("cuda:1")
        talker.model.stop_head.weight.zero_()
        got = run(other, {0: [request(3)]})["s3"]
    assert torch.equal(got, run(engine, {0: [request(3)]})["s3"])


def test_an_engine_starts_on_a_device_that_others_use_and_leaves_them_room(checkpoint):
    _, whole = torch.cuda.mem_get_info()
    others = torch.empty(whole // 4, dtype=torch.uint8, device="cuda")
    before, _ = torch.cuda.mem_get_info()
    engine, talker = build_engine(EngineChoice("vllm", device="cuda"), OPTIONS, "voxcpm2", checkpoint)
    talker.model.stop_head.weight.zero_()
    assert len(run(engine, {0: [request(1)]})["s1"]) == FRAMES
    after, _ = torch.cuda.mem_get_info()
    assert before - after < 4 << 30
    del others
