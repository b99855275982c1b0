"""VibeVoice on a GPU: it computes what it computes on the CPU, and its captured steps what plain ones do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from tests.perf.bench_vibevoice import load_talker as load_random_talker

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.vibevoice import load_frontend, load_reference_encoder, make_prompt, make_sampling
from triton_speech.families.vibevoice.config import VibeVoiceConfig
from triton_speech.families.vibevoice.frontend import FrontendParameters
from triton_speech.families.vibevoice.prompt import Prompt
from triton_speech.families.vibevoice.settings import Sampling
from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint
from triton_speech.request import SpeechRequest

FRAMES = 10
TEXTS = ("Hello.", "Speaker 1: Good morning.\nSpeaker 2: And to you.", "One more of them, which is longer.")
NO_VLLM = importlib.util.find_spec("vllm") is None
CONFIGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "vibevoice-1.5b"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def exact() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def engine_of(checkpoint: Path, device: str, *, graphs: bool = True, deterministic: bool = False) -> TorchEngine:
    options = EngineOptions(max_num_seqs=4, deterministic=deterministic)
    choice = EngineChoice(device=device, dtype="float32", length=600, graphs=graphs)
    engine = build_engine(choice, options, "vibevoice", checkpoint)[0]
    assert isinstance(engine, TorchEngine)
    return engine


def speak(engine: TorchEngine, checkpoint: Path, steps: int = 10) -> torch.Tensor:
    """Patches (streams, frames, 1, 1 + hop) of three streams that come one after another."""
    frontend = load_frontend(checkpoint, FrontendParameters())
    frames: list[Frame] = []
    for index, text in enumerate(TEXTS):
        prompt = make_prompt(frontend.prepare(SpeechRequest(text)).tokens, None, None)
        sampling = make_sampling(index, {"INFERENCE_STEPS": steps})
        engine.add(TalkerRequest(str(index), prompt, sampling, FRAMES))
        frames += engine.step()
    while not engine.is_idle:
        frames += engine.step()
    assert all(frame.error is None for frame in frames)
    made = [[one.patch for one in frames if one.stream == str(index)] for index in range(len(TEXTS))]
    return torch.stack([torch.stack([patch for patch in stream if patch is not None]) for stream in made])


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("graphs", [False, True])
def test_gpu_equals_cpu(checkpoint: Path, graphs: bool, deterministic: bool) -> None:
    on_cpu = speak(engine_of(checkpoint, "cpu"), checkpoint)
    engine = engine_of(checkpoint, "cuda", graphs=graphs, deterministic=deterministic)
    assert (speak(engine, checkpoint) - on_cpu).abs().max() < 2e-3
    if graphs:
        use = engine.graph_uses["decode"]
        assert use.replays >= FRAMES
        assert use.fallbacks == 0


def test_more_diffusion_steps_than_were_captured_run_without_graphs(checkpoint: Path) -> None:
    engine = engine_of(checkpoint, "cuda")
    on_cpu = speak(engine_of(checkpoint, "cpu"), checkpoint, steps=14)
    assert (speak(engine, checkpoint, steps=14) - on_cpu).abs().max() < 2e-3
    assert engine.graph_uses["decode"].replays == 0
    assert engine.graph_uses["decode"].fallbacks >= FRAMES


def test_a_recording_is_the_same_voice_as_on_the_cpu(checkpoint: Path) -> None:
    samples = torch.randn(30_000, generator=torch.Generator().manual_seed(3)).numpy() * 0.1
    on_cpu, on_gpu = (
        load_reference_encoder(checkpoint, device=device).encode(samples, "reference") for device in ("cpu", "cuda")
    )
    assert abs(on_cpu - on_gpu).max() < 1e-3


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="the configuration of VibeVoice-1.5B is not beside the project")
def test_full_size_runs_in_bfloat16_through_graphs() -> None:
    config = VibeVoiceConfig.from_checkpoint(CONFIGS)
    options = EngineOptions(max_num_seqs=2)
    engine = TorchEngine(load_random_talker(config, slots_needed(options)), options, graphs=10)
    for index in range(2):
        engine.add(TalkerRequest(str(index), Prompt(tuple(range(5, 45)), (), 1000), Sampling(index), 8))
    frames: list[Frame] = []
    while not engine.is_idle:
        frames += engine.step()
    patches = [frame.patch for frame in frames if frame.patch is not None]
    assert len(patches) == 16
    assert all(patch.isfinite().all() for patch in patches)
    assert engine.graph_uses["decode"].fallbacks == 0


@pytest.mark.skipif(NO_VLLM, reason="vLLM is not installed here")
@pytest.mark.parametrize("ends", [False, True])
def test_on_vllm_streams_that_come_while_others_speak_come_to_their_end(tmp_path: Path, ends: bool) -> None:
    """Weights that say what they happen to say, too: steps without a frame, and ends that are seen a step late."""
    # FlashAttention knows no narrower heads of use.
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    how = {"seed": 6, "stops_at_once": None, "tie_word_embeddings": False} if ends else {}
    folder = write_tiny_checkpoint(tmp_path, torch_dtype="bfloat16", decoder_config=heads, **how)
    choice = EngineChoice("vllm", device="cuda", length=600, kv_cache_bytes=1 << 28)
    engine, _ = build_engine(choice, EngineOptions(max_num_seqs=4), "vibevoice", folder)
    frontend = load_frontend(folder, FrontendParameters())
    for _ in range(2):
        heard: dict[str, list[Frame]] = {}
        waiting = list(range(8))
        while waiting or not engine.is_idle:
            for index in waiting[:2]:
                prompt = make_prompt(frontend.prepare(SpeechRequest(TEXTS[index % 3])).tokens, None, None)
                engine.add(TalkerRequest(str(index), prompt, make_sampling(index, {}), FRAMES))
            waiting = waiting[2:]
            for frame in engine.step():
                heard.setdefault(frame.stream, []).append(frame)
        torch.cuda.synchronize()
        assert len(heard) == 8
        assert all(frames[-1].is_last for frames in heard.values())
        patches = [frame.patch for frames in heard.values() for frame in frames if frame.patch is not None]
        assert all(patch.isfinite().all() and patch[0, 0] == 1 for patch in patches)
        if ends:
            assert any(frames[-1].finish == "stop" for frames in heard.values())
        else:
            assert len(patches) == 8 * FRAMES
            assert {frames[-1].finish for frames in heard.values()} == {"length"}
    assert engine.graph_uses["decode"].replays > 0
