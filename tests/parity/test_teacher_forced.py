"""30 steps in which both models hear the same patches, whatever they themselves made: 1e-4 at every step.

They run as the engine runs them: prompts in chunks, then one row of each stream in one batch, over its slot cache.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from triton_speech.engine.kv_cache import SlotKVCache
from triton_speech.families.voxcpm2 import load_talker
from triton_speech.families.voxcpm2.prompt import Prompt
from triton_speech.families.voxcpm2.talker import Sampling, SlotTalker

LIMIT = 1e-4
MODES = ("zero_shot", "reference", "continuation", "reference_continuation")
PREFILL_CHUNK = 7


def prompt_of(golden: Any, mode: str) -> Prompt:
    """The prompt as upstream laid it out: its tokens, its patches."""
    notes = golden.notes["modes"][mode]
    reference, prompt = (golden.tensors[f"prompt/{role}"] if notes[role] else None for role in ("reference", "prompt"))
    return Prompt(notes["tokens"], reference, prompt)


def run_forced(golden: Any, modes: tuple[str, ...]) -> dict[str, Tensor]:
    """Runs a batch of one stream for each mode -> patches, state, residual, stop (modes, frames, ...)."""
    talker: SlotTalker = load_talker(golden.checkpoint, slots=len(modes) + 1, device="cpu", dtype=None, length=128)
    cache = SlotKVCache(
        talker.kv_shape, slots=len(modes) + 1, length=talker.length, dtype=talker.dtype, device=talker.device
    )
    steps, slots = golden.notes["steps"], torch.arange(1, len(modes) + 1)
    last = []
    for slot, mode in enumerate(modes, start=1):
        prompt = prompt_of(golden, mode)
        seed = golden.notes["modes"][mode]["forced"]["seed"]
        talker.write_prompts([(slot, prompt, Sampling(seed, golden.notes["cfg_value"], steps))])
        for start in range(0, prompt.length - 1, PREFILL_CHUNK):
            stop = min(start + PREFILL_CHUNK, prompt.length - 1)
            positions = torch.arange(start, stop)
            talker.hidden(torch.full_like(positions, slot), positions, cache.prefill(slot, start, stop))
        last.append(prompt.length - 1)
    fed = torch.stack([golden.tensors[f"forced/{mode}/fed"] for mode in modes])
    made: dict[str, list[Tensor]] = {name: [] for name in ("patches", "state", "residual", "stop")}
    for frame in range(golden.notes["frames"]):
        positions = torch.tensor(last) + frame
        attend = cache.decode(slots, positions, int(positions.max()))
        state, residual = talker.hidden(slots, positions, attend)
        patches, _ = talker.emit(slots, positions, state, residual, steps)
        talker.write_patches(slots, positions + 1, fed[:, frame])
        values = (patches, state, residual, talker.model.stop_logits(state))
        for name, value in zip(made, values, strict=True):
            made[name].append(value)
    return {name: torch.stack(values, dim=1) for name, values in made.items()}


@pytest.mark.parametrize(
    "modes", [*((mode,) for mode in MODES), MODES], ids=[*(f"{mode}-alone" for mode in MODES), "all-in-one-batch"]
)
@torch.inference_mode()
def test_each_step_is_upstreams(golden: Any, modes: tuple[str, ...]) -> None:
    ours = run_forced(golden, modes)
    for row, mode in enumerate(modes):
        for name, values in ours.items():
            theirs = golden.tensors[f"forced/{mode}/{name}"]
            # The two stop logits pass through zero together, so theirs are measured by all steps' largest.
            scale = theirs if name == "stop" else None
            for frame in range(golden.notes["frames"]):
                golden.check(f"teacher-forced: {mode}, {name}", values[row, frame], theirs[frame], LIMIT, scale)


@pytest.mark.parametrize("mode", MODES)
def test_no_quantised_value_lay_on_an_edge(golden: Any, mode: str) -> None:
    assert golden.notes["modes"][mode]["forced"]["edge"] > golden.notes["min_edge"] >= 5e-4
