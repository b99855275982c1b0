"""The torch engine on a GPU computes what it computes on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.voxcpm2.checkpoint import load_talker
from triton_speech.families.voxcpm2.prompt import Prompt
from triton_speech.families.voxcpm2.talker import Sampling, SlotTalker
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

FRAMES = 30


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


class Following(SlotTalker):
    """Feeds the patches of another run instead of its own, so that last-bit differences cannot add up."""

    feed: torch.Tensor

    def emit(self, slots, positions, *args):
        made, stops = super().emit(slots, positions, *args)
        frames = positions - self.prompt_length[slots] + 1
        self.write_patches(slots, positions + 1, self.feed[frames.cpu()].to(made.device, made.dtype))
        return made, torch.zeros_like(stops)


def speak(checkpoint: Path, device: str, feed: torch.Tensor, **options: object) -> torch.Tensor:
    limits = EngineOptions(max_num_seqs=4, **options)
    talker = Following(load_talker(checkpoint, device=device, dtype=torch.float32), slots_needed(limits))
    talker.feed = feed
    engine = TorchEngine(talker, limits)
    for index in range(4):
        prompt = Prompt([5 + index, 6, 7, 8], reference=feed[:3], prompt=feed[3:5])
        engine.add(TalkerRequest(str(index), prompt, Sampling(seed=index), FRAMES))
    frames: list[Frame] = []
    while not engine.is_idle:
        frames += engine.step()
    return torch.stack([f.patch for f in sorted(frames, key=lambda f: f.stream) if f.patch is not None])


@pytest.mark.parametrize("deterministic", [False, True])
def test_gpu_equals_cpu_when_fed_the_same(checkpoint, deterministic):
    torch.backends.cuda.matmul.allow_tf32 = False
    feed = torch.randn(FRAMES + 8, 2, 8, generator=torch.Generator().manual_seed(1))
    on_cpu = speak(checkpoint, "cpu", feed, deterministic=deterministic)
    on_gpu = speak(checkpoint, "cuda", feed, deterministic=deterministic)
    assert (on_cpu - on_gpu).abs().max() < 1e-3


def test_full_size_runs_in_bfloat16():
    """Random weights of the real size, where its configuration is at hand."""
    from triton_speech.families.voxcpm2.config import VoxCPM2Config
    from triton_speech.families.voxcpm2.minicpm import fuse
    from triton_speech.families.voxcpm2.model import VoxCPM2Talker

    path = Path(__file__).resolve().parents[3] / "shared" / "data" / "voxcpm2" / "config.json"
    if not path.is_file():
        pytest.skip("the configuration of VoxCPM2 is not beside the project")
    config = VoxCPM2Config.model_validate(json.loads(path.read_text(encoding="utf-8")))
    with torch.device("cuda"):
        model = VoxCPM2Talker(config, length=512).to(torch.bfloat16)
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.02)
    fuse(model)
    options = EngineOptions(max_num_seqs=2)
    engine = TorchEngine(SlotTalker(model.eval().requires_grad_(False), slots_needed(options)), options)
    engine.add(TalkerRequest("a", Prompt(list(range(3, 43))), Sampling(seed=0), 8))
    frames: list[Frame] = []
    while not engine.is_idle:
        frames += engine.step()
    assert all(frame.patch.isfinite().all() for frame in frames)
