"""A script of ten minutes: memory stays what it was, and what no stream holds is told."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.errors import SpeechError
from triton_speech.families.vibevoice import load_frontend, load_talker, make_prompt, make_sampling
from triton_speech.families.vibevoice.frontend import FrontendParameters
from triton_speech.request import SpeechRequest

TEN_MINUTES = 4500
"""Frames of 133 ms."""
SETTLED = 500
"""Frames after which all buffers of the allocator are there."""
MOST_GROWTH = 12 * 2**20
"""Bytes that a heap may vary by; the samples of ten minutes alone are 58 MB."""
SCRIPT = "\n".join(
    f"Speaker {1 + turn % 4}: This is turn {turn}, and it says a little more than nothing." for turn in range(40)
)


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096


def engine_of(folder: Path, length: int) -> TorchEngine:
    options = EngineOptions(max_num_seqs=1)
    talker = load_talker(folder, slots=slots_needed(options), device="cpu", dtype=None, length=length)
    return TorchEngine(talker, options)


def request_of(folder: Path, text: str, frames: int, steps: int = 2) -> TalkerRequest:
    tokens = load_frontend(folder, FrontendParameters()).prepare(SpeechRequest(text)).tokens
    prompt = make_prompt(tokens, None, None)
    return TalkerRequest("one", prompt, make_sampling(1, {"INFERENCE_STEPS": steps}), frames)


@pytest.mark.timeout(900)
def test_a_script_of_ten_minutes_runs_in_constant_memory(folder: Path) -> None:
    engine = engine_of(folder, 8192)
    request = request_of(folder, SCRIPT, TEN_MINUTES)
    assert request.prompt.length + TEN_MINUTES <= 8192
    engine.add(request)
    made, settled = 0, 0
    finish = ""
    while not engine.is_idle:
        for frame in engine.step():
            assert frame.error is None
            made += frame.patch is not None
            finish = frame.finish
        if made == SETTLED:
            settled = resident_bytes()
    assert (made, finish) == (TEN_MINUTES, "length")
    assert resident_bytes() - settled < MOST_GROWTH


def test_a_prompt_that_no_stream_holds_is_refused_with_the_limit(folder: Path) -> None:
    """The engine says so before anything runs; streams that fit are taken all the same."""
    engine = engine_of(folder, 256)
    with pytest.raises(SpeechError, match=r"^TEXT: text and audio prompts take \d+ positions, at most 255 fit$"):
        engine.add(request_of(folder, SCRIPT, 3))
    assert engine.is_idle
    engine.add(request_of(folder, "Hello.", 3))
    frames = [frame for _ in range(3) for frame in engine.step()]
    assert [frame.finish for frame in frames] == ["", "", "length"]


def test_more_positions_than_the_model_knows_stop_the_loading(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"length is 16385, .* has positions for 1 to 16384"):
        load_talker(folder, slots=2, device="cpu", dtype=None, length=16385)
