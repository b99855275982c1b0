"""The talker's steps as graphs: the same codes. Running a step again stands for replaying its graph."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.qwen3_tts import load_frontend, load_talker
from triton_speech.families.qwen3_tts.frontend import FrontendParameters
from triton_speech.families.qwen3_tts.prompt import Prompt
from triton_speech.families.qwen3_tts.settings import Sampling

Checkpoint = Callable[[str], Path]
LENGTH = 700
FRAMES = 30


def again(work: Callable[[], None]) -> Callable[[], None]:
    return work


def refused(work: Callable[[], None]) -> Callable[[], None]:
    raise RuntimeError("nothing is captured here")


def engine_of(folder: Path, graphs: int | None = None, record: Any = again, *, deterministic: bool) -> TorchEngine:
    options = EngineOptions(max_num_seqs=3, prefill_budget=512, prefill_chunk=512, deterministic=deterministic)
    talker = load_talker(folder, slots=slots_needed(options), device="cpu", dtype="float32", length=LENGTH)
    return TorchEngine(talker, options, graphs, record)


def requests(folder: Path) -> list[TalkerRequest]:
    """The last one passes the end of the shortest graphs while it speaks."""
    frontend = load_frontend(folder, FrontendParameters())
    texts = ("Hello.", "So it was, and so it will be.", "the " * 490)
    return [
        TalkerRequest(
            str(seed),
            Prompt(frontend.words(text, voice="vivian", non_streaming=seed == 2)),
            Sampling(seed, temperature=0.9 * (seed > 0), repetition_penalty=1.3),
            FRAMES + seed,
        )
        for seed, text in enumerate(texts)
    ]


def codes(engine: TorchEngine, folder: Path) -> dict[str, Tensor]:
    for one in requests(folder):
        engine.add(one)
    frames: list[Frame] = []
    while not engine.is_idle:
        frames += engine.step()
    streams = {frame.stream for frame in frames}
    return {
        name: torch.stack([f.patch for f in frames if f.stream == name and f.patch is not None]) for name in streams
    }


@pytest.mark.parametrize("deterministic", [False, True])
def test_captured_steps_say_what_plain_steps_say(checkpoint: Checkpoint, deterministic: bool) -> None:
    folder = checkpoint("custom_voice")
    captured = engine_of(folder, 10, deterministic=deterministic)
    expected, got = codes(engine_of(folder, deterministic=deterministic), folder), codes(captured, folder)
    assert {stream: len(frames) for stream, frames in got.items()} == {"0": FRAMES, "1": FRAMES + 1, "2": FRAMES + 2}
    assert all(torch.equal(got[stream], frames) for stream, frames in expected.items())
    use = captured.graph_uses["decode"]
    assert (use.replays, use.fallbacks) == (FRAMES + 2, 0)


def test_where_steps_cannot_be_captured_all_is_said_and_counted(checkpoint: Checkpoint) -> None:
    folder = checkpoint("custom_voice")
    engine = engine_of(folder, 10, refused, deterministic=False)
    expected, got = codes(engine_of(folder, deterministic=False), folder), codes(engine, folder)
    assert all(torch.equal(got[stream], frames) for stream, frames in expected.items())
    use = engine.graph_uses["decode"]
    assert (use.replays, use.fallbacks) == (0, FRAMES + 2)
