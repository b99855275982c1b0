from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.voxcpm2.checkpoint import load_talker
from triton_speech.families.voxcpm2.model import VoxCPM2Talker
from triton_speech.families.voxcpm2.prompt import Prompt
from triton_speech.families.voxcpm2.talker import Sampling, SlotTalker
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

MakeEngine = Callable[..., TorchEngine]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> VoxCPM2Talker:
    """A tiny random talker that never stops by itself."""
    model = load_talker(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))
    model.stop_head.weight.zero_()
    return model


@pytest.fixture
def make_engine(model: VoxCPM2Talker) -> MakeEngine:
    def make(talker: type[SlotTalker] = SlotTalker, **options: object) -> TorchEngine:
        limits = EngineOptions(**{"max_num_seqs": 4, **options})
        return TorchEngine(talker(model, slots_needed(limits)), limits)

    return make


@pytest.fixture
def vllm_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM begins a step before it has seen what came of the one before: its way on a GPU, which it leaves on a CPU."""
    from vllm.engine.arg_utils import EngineArgs

    settle = EngineArgs.create_engine_config

    def settled(self: EngineArgs, *args: object, **options: object) -> object:
        config = settle(self, *args, **options)
        config.scheduler_config.async_scheduling = True
        return config

    monkeypatch.setattr(EngineArgs, "create_engine_config", settled)


def request(
    stream: str, *, tokens: int = 12, frames: int = 10, reference: int = 0, prompt: int = 0, seed: int = 0, **how: float
) -> TalkerRequest:
    """A stream whose whole prompt follows from its seed."""
    source = torch.Generator().manual_seed(seed)

    def latents(count: int) -> Tensor | None:
        return torch.randn(count, 2, 8, generator=source) if count else None

    ids = torch.randint(3, 90, (tokens,), generator=source).tolist()
    sampling = Sampling(seed=seed, inference_steps=int(how.pop("steps", 4)), **how)
    return TalkerRequest(stream, Prompt(ids, latents(reference), latents(prompt)), sampling, frames)


def run(engine: TorchEngine, arrivals: dict[int, list[TalkerRequest]]) -> dict[str, list[Frame]]:
    """Steps the engine until it is idle; ``arrivals`` are added before the step of their number."""
    out: dict[str, list[Frame]] = {}
    step = 0
    while step <= max(arrivals) or not engine.is_idle:
        for one in arrivals.get(step, []):
            engine.add(one)
        for frame in engine.step():
            out.setdefault(frame.stream, []).append(frame)
        step += 1
        assert step < 2000, "the engine does not come to an end"
    return out


def patches(frames: list[Frame]) -> Tensor:
    """(T, P, D) of one stream."""
    return torch.stack([frame.patch for frame in frames if frame.patch is not None])
