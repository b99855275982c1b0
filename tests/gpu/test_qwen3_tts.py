"""Qwen3-TTS on a GPU: captured steps say what plain ones say, on both engines, and so does the codec."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.families.qwen3_tts import load_codec, load_frontend
from triton_speech.families.qwen3_tts.frontend import FrontendParameters
from triton_speech.families.qwen3_tts.prompt import Prompt
from triton_speech.families.qwen3_tts.settings import Sampling
from triton_speech.families.qwen3_tts.tiny import write_tiny_checkpoint

OPTIONS = EngineOptions(max_num_seqs=8, prefill_budget=64)
FRAMES = 50
NO_VLLM = importlib.util.find_spec("vllm") is None


@pytest.fixture(scope="module", autouse=True)
def _full_products() -> Any:
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = allowed


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # FlashAttention knows no narrower heads of use.
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), kind="base", head_dim=64, dtype="bfloat16")


def requests(folder: Path, frames: int = FRAMES) -> list[TalkerRequest]:
    """Greedy and drawn, with a voice and with a recording, text all at once and trailing."""
    frontend = load_frontend(folder, FrontendParameters())
    made = []
    for seed in range(8):
        source = torch.Generator().manual_seed(seed)
        words = frontend.words(
            "So it is, and so it will be. " * (1 + seed % 3),
            reference_text="And so we met." if seed % 2 else None,
            non_streaming=seed % 4 > 1,
        )
        codes = torch.randint(0, 64, (5 + seed, 16), generator=source) if seed % 2 else None
        prompt = Prompt(words, 0.1 * torch.randn(words.vector_size, generator=source), codes)
        temperature = 0.9 * (seed > 1)
        sampling = Sampling(seed, temperature=temperature, codes_temperature=temperature, repetition_penalty=1.3)
        made.append(TalkerRequest(str(seed), prompt, sampling, frames))
    return made


def run(engine: Any, arrivals: dict[int, list[TalkerRequest]]) -> dict[str, Tensor]:
    out: dict[str, list[Tensor]] = {}
    step = 0
    while step <= max(arrivals) or not engine.is_idle:
        for one in arrivals.get(step, []):
            engine.add(one)
        for frame in engine.step():
            assert frame.error is None
            out.setdefault(frame.stream, []).append(frame.patch)
        step += 1
    return {stream: torch.stack(frames) for stream, frames in out.items()}


def torch_engine(folder: Path, device: str = "cuda", **how: Any) -> Any:
    choice = EngineChoice("torch", device=device, dtype="float32", length=512, **how)
    return build_engine(choice, OPTIONS, "qwen3_tts", folder)[0]


def test_captured_steps_say_what_plain_ones_and_the_cpu_say(checkpoint: Path) -> None:
    arrivals = {0: requests(checkpoint)[:3], 7: requests(checkpoint)[3:]}
    captured = torch_engine(checkpoint)
    got = run(captured, arrivals)
    assert captured.graph_uses["decode"].replays > FRAMES
    assert captured.graph_uses["decode"].fallbacks == 0
    for plain in (torch_engine(checkpoint, graphs=False), torch_engine(checkpoint, "cpu")):
        for stream, codes in run(plain, arrivals).items():
            assert torch.equal(got[stream], codes), stream


def test_the_codecs_graphs_decode_what_plain_steps_decode(checkpoint: Path) -> None:
    pieces = (1, 2, 4)
    limits = {"slots": 9, "device": "cuda", "max_batch": 8, "pieces": pieces}
    captured = load_codec(checkpoint, **limits)
    plain, on_cpu = load_codec(checkpoint, **limits, graphs=False), load_codec(checkpoint, slots=9)
    source = torch.Generator().manual_seed(1)
    for piece in pieces * 3:
        streams = list(range(1, 1 + 8 // piece))
        codes = torch.randint(0, 64, (len(streams), piece, 1, 16), generator=source).float()
        samples = captured.decode(codes, streams)
        assert (samples - plain.decode(codes, streams)).abs().max() < 1e-5
        assert (samples - on_cpu.decode(codes, streams)).abs().max() < 1e-3
    assert (captured.graph_use.replays, captured.graph_use.fallbacks) == (9, 0)


def test_a_batch_that_no_graph_holds_is_decoded_and_counted(checkpoint: Path) -> None:
    codec = load_codec(checkpoint, slots=5, device="cuda", max_batch=2, pieces=(1,))
    assert codec.decode(torch.zeros(1, 3, 1, 16), [1]).shape == (1, 3 * codec.samples_per_patch)
    assert codec.graph_use.fallbacks == 1


@pytest.fixture(scope="module")
def vllm_engine(checkpoint: Path) -> Any:
    if NO_VLLM:
        pytest.skip("vLLM is not installed here")
    choice = EngineChoice("vllm", device="cuda", length=512, kv_cache_bytes=1 << 28)
    return build_engine(choice, OPTIONS, "qwen3_tts", checkpoint)[0]


def test_on_vllm_the_first_frames_are_those_of_the_torch_engine(vllm_engine: Any, checkpoint: Path) -> None:
    """In bfloat16 the logits of the two differ in their last bits, and a draw may fall to the other side of one."""
    choice = EngineChoice("torch", device="cuda", dtype="bfloat16", length=512)
    other, _ = build_engine(choice, OPTIONS, "qwen3_tts", checkpoint)
    expected = run(other, {0: requests(checkpoint, frames=1)})
    got = run(vllm_engine, {0: requests(checkpoint, frames=1)})
    same = sum(bool((got[stream] == frames).float().mean() > 0.9) for stream, frames in expected.items())
    assert same >= len(expected) - 2


def test_on_vllm_a_stream_is_the_same_again(vllm_engine: Any, checkpoint: Path) -> None:
    one = requests(checkpoint)[3]
    first, second = (run(vllm_engine, {0: [one]})["3"] for _ in range(2))
    assert first.shape == (FRAMES, 1, 16)
    assert torch.equal(first, second)
    assert vllm_engine.graph_uses["decode"].replays > FRAMES


def test_on_vllm_streams_that_come_while_others_speak_come_to_their_end(vllm_engine: Any, checkpoint: Path) -> None:
    got = run(vllm_engine, {0: requests(checkpoint)[:2], 5: requests(checkpoint)[2:4], 9: requests(checkpoint)[4:]})
    assert {stream: len(frames) for stream, frames in got.items()} == {str(seed): FRAMES for seed in range(8)}
    assert all(((codes >= 0) & (codes < 64)).all() for codes in got.values())


@pytest.mark.skipif(NO_VLLM, reason="vLLM is not installed here")
def test_on_vllm_streams_that_end_by_themselves_leave_the_engine_whole(tmp_path: Path) -> None:
    """vLLM has begun the next step by the time it sees an end; a row of no slot there would stop the device."""
    folder = write_tiny_checkpoint(tmp_path, kind="base", head_dim=64, dtype="bfloat16", stops_at_once=True)
    choice = EngineChoice("vllm", device="cuda", length=512, kv_cache_bytes=1 << 28)
    engine, _ = build_engine(choice, OPTIONS, "qwen3_tts", folder)
    for _ in range(2):
        for one in requests(folder):
            engine.add(one)
        ends = {}
        while not engine.is_idle:
            ends |= {frame.stream: frame for frame in engine.step() if frame.is_last}
        torch.cuda.synchronize()
        assert {(end.patch is None, end.finish) for end in ends.values()} == {(True, "stop")}
        assert len(ends) == 8
