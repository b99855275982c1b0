"""30 frames of each mode from text and audio to samples, each model hearing itself: within 1e-3.

Quantising makes this a comparison of another kind: a last-bit difference next to an edge flips a level, and from there
on the two go different ways. The golden seeds keep every quantised value 5e-4 of a level's width away from the edges.
"""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.voxcpm2 import (
    load_codec,
    load_reference_encoder,
    load_talker,
    make_prompt,
    make_sampling,
    priming_patches,
)
from triton_speech.families.voxcpm2.prompt import Prompt
from triton_speech.families.voxcpm2.tokenizer import Tokenizer

LIMIT = 1e-3
AUDIO_LIMIT = 1e-4
MODES = ("zero_shot", "reference", "continuation", "reference_continuation")
SCHEDULE = (1, 2, 4, 8, 15)
"""Patches in each chunk that the codec decodes; 30 together."""


def prompt_of(golden: Any, mode: str) -> Prompt:
    """The prompt made by us, from text and samples."""
    notes = golden.notes["modes"][mode]
    tokens = Tokenizer.from_checkpoint(golden.checkpoint).encode(notes["prompt_text"] + notes["text"])
    encoder = load_reference_encoder(golden.checkpoint)
    reference, prompt = (
        torch.from_numpy(encoder.encode(golden.tensors[f"audio/{role}"].numpy(), role)) if notes[role] else None
        for role in ("reference", "prompt")
    )
    return make_prompt(tokens, reference, prompt)


def load_engine(golden: Any, *, deterministic: bool = False) -> TorchEngine:
    options = EngineOptions(max_num_seqs=4, prefill_chunk=7, prefill_budget=14, deterministic=deterministic)
    talker = load_talker(golden.checkpoint, slots=slots_needed(options), device="cpu", dtype=None, length=128)
    return TorchEngine(talker, options)


def generate(engine: TorchEngine, golden: Any, modes: tuple[str, ...]) -> dict[str, Tensor]:
    """Runs the engine until all streams have ended -> patches (frames, P, D) of each."""
    fields = {"CFG_VALUE": golden.notes["cfg_value"], "INFERENCE_STEPS": golden.notes["steps"]}
    for mode in modes:
        sampling = make_sampling(golden.notes["modes"][mode]["free"]["seed"], fields)
        engine.add(TalkerRequest(mode, prompt_of(golden, mode), sampling, golden.notes["frames"]))
    patches: dict[str, list[Tensor]] = {mode: [] for mode in modes}
    while not engine.is_idle:
        for frame in engine.step():
            assert frame.patch is not None
            patches[frame.stream].append(frame.patch)
    return {mode: torch.stack(made) for mode, made in patches.items()}


def decode(golden: Any, mode: str, patches: Tensor) -> Tensor:
    """Patches (frames, P, D) through the codec, as a stream -> samples (N,)."""
    codec, slot = load_codec(golden.checkpoint, slots=2), 1
    primer = priming_patches(prompt_of(golden, mode))
    if primer is not None:
        codec.decode(primer[None], [slot])
    starts = itertools.accumulate(SCHEDULE, initial=0)
    chunks = [patches[start:][:size] for start, size in zip(starts, SCHEDULE, strict=False)]
    return torch.cat([codec.decode(chunk[None], [slot])[0] for chunk in chunks if len(chunk)])


@pytest.fixture(scope="module", params=["alone", "together", "deterministic"])
def generated(request: pytest.FixtureRequest, golden: Any) -> dict[str, Tensor]:
    """Patches of all modes, made one stream at a time, in one batch, or in batches of pinned shape."""
    engine = load_engine(golden, deterministic=request.param == "deterministic")
    if request.param == "together":
        return generate(engine, golden, MODES)
    return {mode: generate(engine, golden, (mode,))[mode] for mode in MODES}


@pytest.mark.parametrize("mode", MODES)
def test_patches_are_upstreams(golden: Any, generated: dict[str, Tensor], mode: str) -> None:
    golden.check(f"free-running: {mode}, patches", generated[mode], golden.tensors[f"free/{mode}/patches"], LIMIT)


@pytest.mark.parametrize("mode", MODES)
def test_streamed_audio_is_upstreams_offline_audio(golden: Any, generated: dict[str, Tensor], mode: str) -> None:
    """Upstream decodes all at once, three patches of a prompt in front, and cuts their samples off afterwards."""
    audio = decode(golden, mode, generated[mode])
    assert len(audio) == golden.notes["modes"][mode]["samples"]
    theirs = golden.tensors[f"free/{mode}/audio"]
    golden.check(f"free-running: {mode}, audio", audio[:: golden.notes["audio_stride"]], theirs, AUDIO_LIMIT)


@pytest.mark.parametrize("mode", MODES)
def test_streams_end_at_the_same_frame(golden: Any, generated: dict[str, Tensor], mode: str) -> None:
    assert len(generated[mode]) == golden.notes["modes"][mode]["free"]["frames"]


def test_a_stop_is_obeyed_from_the_same_frame_on(golden: Any) -> None:
    engine = load_engine(golden)
    engine.talker.model.stop_head.weight.neg_()
    frames = generate(engine, golden, ("zero_shot",))["zero_shot"]
    if golden.name == "committed":
        assert golden.notes["frames_with_stop_head_negated"] == 4
    assert len(frames) == golden.notes["frames_with_stop_head_negated"]


@pytest.mark.parametrize("mode", MODES)
def test_no_quantised_value_lay_on_an_edge(golden: Any, mode: str) -> None:
    assert golden.notes["modes"][mode]["free"]["edge"] > golden.notes["min_edge"] >= 5e-4


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_upstreams(golden: Any, mode: str) -> None:
    assert prompt_of(golden, mode).tokens == golden.notes["modes"][mode]["tokens"]
