"""The talkers of random weights that a GPU is measured with: they can be built, never stop, and read what is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.perf import bench_qwen3_tts, bench_vibevoice
from torch import nn

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.kv_cache import SlotKVCache
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families import qwen3_tts, vibevoice
from triton_speech.families.qwen3_tts import tiny as qwen3_tts_tiny
from triton_speech.families.qwen3_tts.config import Qwen3TTSConfig
from triton_speech.families.qwen3_tts.prompt import Prompt, Words
from triton_speech.families.vibevoice import tiny as vibevoice_tiny
from triton_speech.families.vibevoice.config import VibeVoiceConfig
from triton_speech.families.vibevoice.prompt import Prompt as Tokens

STREAMS, FRAMES = 8, 60
OPTIONS = EngineOptions(max_num_seqs=STREAMS)
ROOT = Path(__file__).resolve().parents[2]


def ends(talker: Any, family: Any, prompt: Any) -> list[Frame]:
    engine = TorchEngine(talker, OPTIONS)
    for seed in range(STREAMS):
        engine.add(TalkerRequest(str(seed), prompt, family.make_sampling(seed, {}), FRAMES))
    frames: list[Frame] = []
    while not engine.is_idle:
        frames += engine.step()
    assert sum(frame.patch is not None for frame in frames) == STREAMS * FRAMES
    return [frame for frame in frames if frame.is_last]


def bytes_read(talker: Any) -> int:
    """In one step of one stream: of each module's weights as often as it is called. Few embeddings are read."""
    read = 0

    def count(module: nn.Module, *_: Any) -> None:
        nonlocal read
        if not isinstance(module, nn.Embedding):
            read += sum(weight.nbytes for weight in module.parameters(recurse=False))

    hooks = [module.register_forward_hook(count) for module in talker.model.modules()]
    cache = SlotKVCache(talker.kv_shape, slots=2, length=64, dtype=talker.dtype, device=talker.device)
    slot, position = (torch.tensor([value], device=talker.device) for value in (1, 9))
    with torch.inference_mode():
        talker.emit(slot, position, *talker.hidden(slot, position, cache.decode(slot, position, 9)), 10)
    for hook in hooks:
        hook.remove()
    return read


def test_qwen3_tts(tmp_path: Path) -> None:
    folder = qwen3_tts_tiny.write_tiny_checkpoint(tmp_path / "tiny", kind="base")
    talker = bench_qwen3_tts.load_talker(Qwen3TTSConfig.from_checkpoint(folder), slots_needed(OPTIONS))
    assert sum(bench_qwen3_tts.bytes_read(talker)) == bytes_read(talker)
    prompt = Prompt(Words(role=(1, 2, 3), text=tuple(range(10, 30)), non_streaming=True))
    assert [end.finish for end in ends(talker, qwen3_tts, prompt)] == ["length"] * STREAMS


def test_vibevoice(tmp_path: Path) -> None:
    folder = vibevoice_tiny.write_tiny_checkpoint(tmp_path / "tiny")
    talker = bench_vibevoice.load_talker(VibeVoiceConfig.from_checkpoint(folder), slots_needed(OPTIONS))
    assert bench_vibevoice.floor(talker, bandwidth=1000) == bytes_read(talker)
    prompt = Tokens(tuple(range(5, 45)), (), 200)
    assert [end.finish for end in ends(talker, vibevoice, prompt)] == ["length"] * STREAMS


@pytest.mark.slow
def test_the_tests_for_a_gpu_can_be_collected() -> None:
    """One module that cannot be imported would keep all of them from running."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "--collect-only", "-q"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert told.returncode == 0, told.stdout[-2000:]
