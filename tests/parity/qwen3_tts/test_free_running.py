"""From text and audio to samples, each model hearing itself: the same codes, logits within 1e-4, audio within 1e-4."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from triton_speech.engine.api import EngineOptions, TalkerRequest
from triton_speech.engine.slots import slots_needed
from triton_speech.engine.torch_engine import TorchEngine
from triton_speech.families.qwen3_tts import load_codec, load_reference_encoder, load_talker, priming_patches
from triton_speech.families.qwen3_tts.frontend import FrontendParameters, Qwen3TTSFrontend
from triton_speech.families.qwen3_tts.prompt import Prompt
from triton_speech.families.qwen3_tts.settings import Sampling
from triton_speech.families.qwen3_tts.talker import SlotTalker

LIMIT = 1e-4
CASES = tuple(json.loads((Path(__file__).parent / "data/goldens.json").read_text(encoding="utf-8"))["cases"])
SCHEDULE = (1, 2, 4, 8, 15, 100)
"""Frames in each chunk that the codec decodes."""
Checkpoint = Callable[[str], Path]


def prompt_of(goldens: Any, folder: Path, case: dict[str, Any]) -> Prompt:
    """The prompt made by us, from text and samples."""
    by_codes = "ref_text" in case
    words = Qwen3TTSFrontend.from_checkpoint(folder, FrontendParameters()).words(
        case["text"],
        language=case.get("language"),
        voice=case.get("speaker"),
        instruction=case.get("instruct") or None,
        reference_text=case.get("ref_text"),
        non_streaming=case.get("non_streaming_mode"),
    )
    if case["checkpoint"] != "base":
        return Prompt(words)
    audio = goldens.tensors["encode/whole/audio"].numpy()
    encoder = load_reference_encoder(folder)
    vector = torch.from_numpy(encoder.speaker_vector(audio))
    return Prompt(words, vector, torch.from_numpy(encoder.codes(audio)) if by_codes else None)


def sampling_of(goldens: Any, case: dict[str, Any]) -> Sampling:
    if not case.get("sampled"):
        return Sampling(seed=1, temperature=0.0, codes_temperature=0.0, repetition_penalty=1.05)
    used = goldens.notes["sampled"]
    return Sampling(
        seed=goldens.notes["seed"],
        **{name: used[name] for name in ("temperature", "top_k", "top_p", "repetition_penalty")},
        **{f"codes_{name}": used[f"subtalker_{name}"] for name in ("temperature", "top_k", "top_p")},
    )


class Listener:
    """The logits of a talker's steps."""

    def __init__(self, talker: SlotTalker) -> None:
        self.first: list[Tensor] = []
        self.others: list[Tensor] = []
        model = talker.model
        model.codec_head.register_forward_hook(lambda _, args, output: self.first.append(output.clone()))
        for head in model.code_predictor.lm_head:
            head.register_forward_hook(lambda _, args, output: self.others.append(output.clone()))


def load_engine(folder: Path, *, deterministic: bool = False) -> TorchEngine:
    options = EngineOptions(max_num_seqs=4, prefill_chunk=7, prefill_budget=14, deterministic=deterministic)
    talker = load_talker(folder, slots=slots_needed(options), device="cpu", dtype=None, length=192)
    return TorchEngine(talker, options)


def generate(engine: TorchEngine, requests: list[TalkerRequest]) -> dict[str, Tensor]:
    """Runs the engine until all streams have ended -> codes (frames, G) of each."""
    for request in requests:
        engine.add(request)
    made: dict[str, list[Tensor]] = {request.stream: [] for request in requests}
    while not engine.is_idle:
        for frame in engine.step():
            assert frame.error is None
            if frame.patch is not None:
                made[frame.stream].append(frame.patch[0].to(torch.int64))
    return {stream: torch.stack(frames) for stream, frames in made.items()}


def request_of(goldens: Any, checkpoint: Checkpoint, name: str) -> TalkerRequest:
    case = goldens.notes["cases"][name]
    prompt = prompt_of(goldens, checkpoint(case["checkpoint"]), case)
    return TalkerRequest(name, prompt, sampling_of(goldens, case), case["frames"])


@pytest.mark.parametrize("name", CASES)
def test_prompt_rows_and_trailing_text_are_upstreams(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    request = request_of(goldens, checkpoint, name)
    talker = load_engine(checkpoint(goldens.notes["cases"][name]["checkpoint"])).talker
    talker.write_prompts([(1, request.prompt, request.sampling)])
    inputs, trailing = goldens.tensors[f"{name}/inputs"], goldens.tensors[f"{name}/trailing"]
    length = request.prompt.length
    assert length == len(inputs)
    goldens.check(f"{name}: rows of the prompt", talker.inputs[1, :length], inputs, LIMIT)
    # Upstream's trailing text ends with padding where there is none; ours is not written down then.
    texts = int(talker.text_end[1]) - length
    heard = torch.cat((talker.inputs[1, length : length + texts], talker._pad.unsqueeze(0)))[: len(trailing)]
    goldens.check(f"{name}: trailing text", heard, trailing, LIMIT)


@pytest.mark.parametrize("name", CASES)
def test_codes_and_logits_of_each_step_are_upstreams(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    request = request_of(goldens, checkpoint, name)
    engine = load_engine(checkpoint(goldens.notes["cases"][name]["checkpoint"]))
    talker = engine.talker
    assert isinstance(talker, SlotTalker)
    listener = Listener(talker)
    codes = generate(engine, [request])[name]
    assert torch.equal(codes, goldens.tensors[f"{name}/codes"].long())
    end = talker.config.talker_config.codec_eos_token_id
    kept = [*range(talker.config.talker_config.codes), end]
    logits = torch.cat(listener.first)[:, kept]
    goldens.check(f"{name}: logits of first codes", logits, goldens.tensors[f"{name}/logits"], LIMIT)
    predicted = goldens.tensors[f"{name}/predicted"]
    groups = predicted.shape[1]
    others = torch.cat(listener.others)[: len(predicted) * groups].unflatten(0, (-1, groups))
    goldens.check(f"{name}: logits of other codes", others, predicted, LIMIT)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kind", ["base", "custom_voice", "voice_design"])
def test_streams_in_one_batch_have_upstreams_codes_each(
    goldens: Any, checkpoint: Checkpoint, kind: str, deterministic: bool
) -> None:
    names = [name for name in CASES if goldens.notes["cases"][name]["checkpoint"] == kind]
    engine = load_engine(checkpoint(kind), deterministic=deterministic)
    made = generate(engine, [request_of(goldens, checkpoint, name) for name in names])
    assert [name for name in names if not torch.equal(made[name], goldens.tensors[f"{name}/codes"].long())] == []


@pytest.mark.parametrize("name", CASES)
def test_streamed_audio_is_upstreams_offline_audio(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    """A continuation hears the whole recording before, whose samples are not sent."""
    case = goldens.notes["cases"][name]
    folder = checkpoint(case["checkpoint"])
    codec, slot = load_codec(folder, slots=2), 1
    primer = priming_patches(request_of(goldens, checkpoint, name).prompt)
    if primer is not None:
        codec.decode(primer[None], [slot])
    frames = goldens.tensors[f"{name}/codes"].float().unsqueeze(1)
    starts = itertools.accumulate(SCHEDULE, initial=0)
    chunks = [frames[start:][:size] for start, size in zip(starts, SCHEDULE, strict=False)]
    audio = torch.cat([codec.decode(chunk[None], [slot])[0] for chunk in chunks if len(chunk)])
    assert len(audio) == case["samples"]
    stride = goldens.notes["audio_stride"]
    goldens.check(f"{name}: audio", audio[::stride], goldens.tensors[f"{name}/audio"], LIMIT)


def test_the_earliest_end_is_upstreams(goldens: Any, checkpoint: Checkpoint) -> None:
    folder = checkpoint("stops_at_once")
    prompt = prompt_of(goldens, folder, {"checkpoint": "voice_design", "text": "A storm."})
    made = generate(load_engine(folder), [TalkerRequest("one", prompt, sampling_of(goldens, {}), 9)])
    assert len(made["one"]) == goldens.notes["frames_of_a_stream_that_stops_at_once"] == 2
