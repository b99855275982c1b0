"""The talkers of random weights that are measured on a GPU: they can be built here, and never stop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.perf import bench_qwen3_tts, bench_vibevoice

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
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


def test_qwen3_tts(tmp_path: Path) -> None:
    folder = qwen3_tts_tiny.write_tiny_checkpoint(tmp_path / "tiny", kind="base")
    talker = bench_qwen3_tts.load_talker(Qwen3TTSConfig.from_checkpoint(folder), slots_needed(OPTIONS))
    prompt = Prompt(Words(role=(1, 2, 3), text=tuple(range(10, 30)), non_streaming=True))
    assert [end.finish for end in ends(talker, qwen3_tts, prompt)] == ["length"] * STREAMS


def test_vibevoice(tmp_path: Path) -> None:
    folder = vibevoice_tiny.write_tiny_checkpoint(tmp_path / "tiny")
    talker = bench_vibevoice.load_talker(VibeVoiceConfig.from_checkpoint(folder), slots_needed(OPTIONS))
    prompt = Tokens(tuple(range(5, 45)), (), 200)
    assert [end.finish for end in ends(talker, vibevoice, prompt)] == ["length"] * STREAMS


@pytest.mark.slow
def test_the_tests_for_a_gpu_can_be_collected() -> None:
    """One module that cannot be imported would keep all of them from running."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "--collect-only", "-q"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert told.returncode == 0, told.stdout[-2000:]
