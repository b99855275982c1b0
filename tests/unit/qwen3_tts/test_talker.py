"""The talker under its engine: ends, errors, seeds, company."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from triton_speech.engine.api import EngineOptions, Frame, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.errors import SpeechError
from triton_speech.families.qwen3_tts import load_talker, talker, talker_facts
from triton_speech.families.qwen3_tts.frontend import FrontendParameters, Qwen3TTSFrontend
from triton_speech.families.qwen3_tts.prompt import Prompt
from triton_speech.families.qwen3_tts.settings import FIELDS, Sampling, make_sampling
from triton_speech.families.qwen3_tts.tiny import write_tiny_checkpoint

Checkpoint = Callable[[str], Path]


def engine_of(folder: Path, *, streams: int = 4, length: int = 128, deterministic: bool = False) -> TorchEngine:
    options = EngineOptions(max_num_seqs=streams, prefill_chunk=16, deterministic=deterministic)
    loaded = load_talker(folder, slots=slots_needed(options), device="cpu", dtype="float32", length=length)
    return TorchEngine(loaded, options)


def request_of(folder: Path, stream: str, text: str, sampling: Sampling, frames: int = 12) -> TalkerRequest:
    words = Qwen3TTSFrontend.from_checkpoint(folder, FrontendParameters()).words(text, voice="vivian")
    return TalkerRequest(stream, Prompt(words), sampling, frames)


def run(engine: TorchEngine, *requests: TalkerRequest) -> dict[str, list[Frame]]:
    for request in requests:
        engine.add(request)
    heard: dict[str, list[Frame]] = {request.stream: [] for request in requests}
    while not engine.is_idle:
        for frame in engine.step():
            heard[frame.stream].append(frame)
    return heard


def codes(frames: list[Frame]) -> Tensor:
    return torch.stack([frame.patch[0] for frame in frames if frame.patch is not None])


@pytest.fixture(scope="module")
def folder(checkpoint: Checkpoint) -> Path:
    return checkpoint("custom_voice")


def test_streams_run_to_their_cap_and_every_code_is_one(folder: Path) -> None:
    frames = run(engine_of(folder), request_of(folder, "one", "Hello.", Sampling(3), 40))["one"]
    assert len(frames) == 40
    assert [frame.finish for frame in frames] == [""] * 39 + ["length"]
    made = codes(frames)
    assert made.shape == (40, 16)
    assert torch.equal(made, made.round().clamp(0, 63))


def test_a_seed_gives_the_same_codes_and_another_gives_others(folder: Path) -> None:
    made = [codes(run(engine_of(folder), request_of(folder, "s", "Hello.", Sampling(seed)))["s"]) for seed in (5, 5, 6)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_stream_says_the_same_in_company(folder: Path, deterministic: bool) -> None:
    settings = [
        Sampling(1),
        Sampling(2, temperature=0.0, codes_temperature=0.0),
        Sampling(3, top_k=5, top_p=0.7, codes_top_k=0, codes_top_p=0.9, repetition_penalty=1.5),
        Sampling(-1, temperature=1.7, top_k=0),
        Sampling(2**63 + 1),
    ]
    texts = ["A.", "The second one is longer than that.", "Three", "4", "And the last."]
    requests = [
        request_of(folder, str(index), text, sampling, 8 + index)
        for index, (text, sampling) in enumerate(zip(texts, settings, strict=True))
    ]
    together = run(engine_of(folder, deterministic=deterministic), *requests)
    for request in requests:
        alone = run(engine_of(folder, deterministic=deterministic), request)[request.stream]
        assert torch.equal(codes(together[request.stream]), codes(alone)), request.stream


def test_what_was_said_is_forgotten_with_the_stream(folder: Path) -> None:
    engine = engine_of(folder, streams=1)
    request = request_of(folder, "one", "Hello.", Sampling(3, repetition_penalty=2.0))
    first = codes(run(engine, request)["one"])
    assert torch.equal(codes(run(engine, request)["one"]), first)


def test_an_end_makes_no_frame_and_comes_after_two(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, kind="custom_voice", head_dim=16, stops_at_once=True)
    frames = run(engine_of(folder), request_of(folder, "one", "Hello.", Sampling(3)))["one"]
    assert [(frame.patch is not None, frame.finish) for frame in frames] == [(True, ""), (True, ""), (False, "stop")]


def test_an_end_at_the_first_step_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_checkpoint(tmp_path, kind="custom_voice", head_dim=16, stops_at_once=True)
    monkeypatch.setattr(talker, "MIN_FRAMES", 0)
    engine = engine_of(folder)
    (frame,) = run(engine, request_of(folder, "one", "Hello.", Sampling(3)))["one"]
    assert frame.error is not None
    assert frame.error.code == "INTERNAL"
    assert "before its first frame" in frame.error.text
    assert frame.patch is None


def test_a_state_that_is_not_finite_ends_its_stream_alone(folder: Path) -> None:
    engine = engine_of(folder)
    engine.add(request_of(folder, "sick", "Hello.", Sampling(1)))
    engine.add(request_of(folder, "well", "Hello.", Sampling(2)))
    engine.step()
    slot = engine._running["sick"].slot
    engine.talker.inputs[slot] = torch.nan
    heard: dict[str, list[Frame]] = {"sick": [], "well": []}
    while not engine.is_idle:
        for frame in engine.step():
            heard[frame.stream].append(frame)
    assert heard["sick"][-1].error is not None
    assert "NaN" in heard["sick"][-1].error.text
    assert heard["well"][-1].finish == "length"


def test_a_stream_ends_where_its_positions_do(folder: Path) -> None:
    request = request_of(folder, "one", "Hello.", Sampling(3), 500)
    frames = run(engine_of(folder, length=60), request)["one"]
    assert frames[-1].finish == "length"
    assert len(frames) == 60 - request.prompt.length + 1


def test_more_text_than_positions_is_no_error(folder: Path) -> None:
    words = Qwen3TTSFrontend.from_checkpoint(folder, FrontendParameters()).words(
        "the " * 100, voice="vivian", non_streaming=False
    )
    request = TalkerRequest("one", Prompt(words), Sampling(1), 500)
    assert run(engine_of(folder, length=40), request)["one"][-1].finish == "length"


@pytest.mark.parametrize("vector", [torch.zeros(3), torch.zeros(2, 64)])
def test_a_vector_of_another_width_is_refused(folder: Path, vector: Tensor) -> None:
    request = request_of(folder, "one", "Hello.", Sampling(1))
    with pytest.raises(ValueError, match=r"must be \(64,\)"):
        engine_of(folder).talker.write_prompts([(1, Prompt(request.prompt.words, vector), request.sampling)])


def test_forced_frames_are_heard_as_if_made(folder: Path) -> None:
    """What ``write_patches`` sets, a later step reads as its own."""
    request = request_of(folder, "one", "Hello.", Sampling(9), 12)
    made = codes(run(engine_of(folder), request)["one"])
    engine = engine_of(folder)
    engine.add(request)
    again = []
    while not engine.is_idle:
        for frame in engine.step():
            assert frame.patch is not None
            again.append(frame.patch[0])
            if len(again) == 1:
                one = engine._running["one"]
                slot, position = torch.tensor([one.slot]), torch.tensor([one.done])
                engine.talker.inputs[slot, position] = 0
                engine.talker.text_end[slot] = 0
                engine.talker.write_patches(slot, position, frame.patch[None])
                assert torch.equal(engine.talker.read_patches([(one.slot, one.done)])[0], frame.patch)
    # All text of this model stands in the prompt, so a frame is followed by padding here and there.
    assert torch.equal(torch.stack(again), made)


def test_fields_of_a_request_become_the_sampling() -> None:
    values = {field.name: field.high for field in FIELDS}
    sampling = make_sampling(4, values)
    for field in FIELDS:
        assert getattr(sampling, field.name.lower()) == field.high
    assert isinstance(sampling.top_k, int)
    assert make_sampling(4, {}) == Sampling(4)


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_out_of_range_is_refused(field: object) -> None:
    name, high = field.name, field.high  # type: ignore[attr-defined]
    with pytest.raises(SpeechError, match=f"{name}: .* is out of range"):
        make_sampling(1, {name: high + 1})


def test_facts_need_no_talker(folder: Path) -> None:
    facts = talker_facts(folder)
    assert (facts.kv_shape.layers, facts.kv_shape.kv_heads, facts.kv_shape.head_dim) == (2, 2, 16)
    assert facts.length == 4096
