"""The diffusion in a stage of its own, on a GPU: the talker's patches wherever they are made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.families.voxcpm2 import load_diffusion
from triton_speech.families.voxcpm2.prompt import Prompt
from triton_speech.families.voxcpm2.talker import Sampling
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    ("place", "dtype", "tolerance"), [("cuda", "float32", 1e-5), ("cuda", "bfloat16", 1e-5), ("cpu", "float32", 1e-3)]
)
def test_a_patch_is_the_same_wherever_it_is_made(
    tmp_path: Path, place: str, dtype: str, tolerance: float, graphs: bool
) -> None:
    """The first one: what follows may part ways, for a last bit may flip a level of the quantiser."""
    folder = write_tiny_checkpoint(tmp_path)
    diffusion = load_diffusion(folder, device=place, dtype=dtype, graphs=8 * graphs)

    def diffuse(rows: Mapping[str, Tensor]) -> Tensor:
        return diffusion.solve(rows, 10)

    made = []
    for elsewhere in (None, diffuse):
        choice = EngineChoice(device="cuda", dtype=dtype, diffuse=elsewhere, graphs=graphs)
        engine, _ = build_engine(choice, EngineOptions(), "voxcpm2", folder)
        for n in range(3):
            engine.add(TalkerRequest(str(n), Prompt(list(range(3, 20 + n)), None, None), Sampling(n), 4))
        made.append(torch.stack([frame.patch for frame in engine.step()]))
        assert not graphs or engine.graph_uses["decode"].replays == 1
    inline, ours = made
    assert inline.isfinite().all()
    assert (inline - ours).abs().max() <= tolerance
    captured = graphs and place == "cuda"
    assert (diffusion.graph_use.replays, diffusion.graph_use.fallbacks) == (int(captured), 0)


def test_captured_steps_speak_as_plain_ones(tmp_path: Path) -> None:
    """Whole streams of one talker, by themselves: nothing of a step is left in the next."""
    folder = write_tiny_checkpoint(tmp_path)
    spoken = []
    for graphs in (False, True):
        engine, _ = build_engine(
            EngineChoice(device="cuda", dtype="float32", graphs=graphs), EngineOptions(), "voxcpm2", folder
        )
        frames = []
        for n in range(3):
            engine.add(
                TalkerRequest(str(n), Prompt(list(range(3, 20 + n)), None, None), Sampling(n, inference_steps=4 + n), 8)
            )
            while not engine.is_idle:
                frames += [frame.patch for frame in engine.step()]
        spoken.append(torch.stack(frames))
    assert (spoken[0] - spoken[1]).abs().max() < 1e-3
