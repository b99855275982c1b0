"""What every response of every pipeline holds, and what a request's fields do to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from triton_speech.families.voxcpm2.checkpoint import load_audio_vae
from triton_speech.families.voxcpm2.frontend import EXTRA_FRAMES, FrontendParameters
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.families.voxcpm2.tokenizer import Tokenizer

TEXT = "The quick brown fox."
RATE = 48_000
FRAME = 3_840
"""Samples of one frame of the tiny checkpoint: 80 ms."""
EVERY_OUTPUT = ("AUDIO", "PCM16", "SAMPLE_RATE", "CHUNK_INDEX", "FINISH_REASON")
FINAL = "triton_final_response"


def speech(text: str = TEXT, *, seed: int | None = 1, seconds: float | None = 1.0, **others: Any) -> dict[str, Any]:
    """The inputs of a good request of at most 12 frames."""
    inputs: dict[str, Any] = {"TEXT": text, **others}
    if seed is not None:
        inputs["SEED"] = np.array([seed], np.uint64)
    if seconds is not None:
        inputs["MAX_SECONDS"] = np.array([seconds], np.float32)
    return inputs


def schedule(*frames: int) -> Any:
    return np.array(frames, np.int32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint that the suite's server speaks with: equal seeds give equal bytes."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("same") / "voxcpm2_tiny")


@pytest.mark.parametrize(
    "outputs",
    [EVERY_OUTPUT, ("AUDIO",), ("PCM16", "FINISH_REASON"), ("FINISH_REASON",), ("CHUNK_INDEX", "SAMPLE_RATE")],
    ids="+".join,
)
def test_a_response_has_the_outputs_that_were_asked_for_and_no_other(
    caller: Any, pipeline: str, outputs: tuple[str, ...]
) -> None:
    answer = caller.ask(pipeline, speech(), outputs)
    assert not answer.errors
    for response in answer.responses:
        assert {output.name for output in response.get_response().outputs} == set(outputs)


def test_without_a_choice_every_output_comes(caller: Any, pipeline: str) -> None:
    answer = caller.ask(pipeline, speech(), ())
    assert {output.name for output in answer.responses[0].get_response().outputs} == set(EVERY_OUTPUT)


def test_chunks_are_numbered_and_the_last_one_is_told_twice(caller: Any, pipeline: str) -> None:
    """T32: by FINISH_REASON and by Triton's own flag, both on the last chunk and nowhere else."""
    answer = caller.ask(pipeline, speech(CHUNK_SCHEDULE=schedule(1, 2, 4)))
    assert answer.column("CHUNK_INDEX") == [0, 1, 2, 3, 4]
    assert answer.column("SAMPLE_RATE") == [RATE] * 5
    assert answer.column("FINISH_REASON") == [b"", b"", b"", b"", b"length"]
    flags = [response.get_response().parameters[FINAL].bool_param for response in answer.responses]
    assert (flags, answer.finals) == ([False, False, False, False, True], 1)


def test_outputs_have_the_types_and_shapes_of_the_contract(caller: Any, pipeline: str) -> None:
    for response in caller.ask(pipeline, speech(), EVERY_OUTPUT).responses:
        outputs = {output.name: (output.datatype, list(output.shape)) for output in response.get_response().outputs}
        count = len(response.as_numpy("AUDIO"))
        assert outputs == {
            "AUDIO": ("FP32", [count]),
            "PCM16": ("INT16", [count]),
            "SAMPLE_RATE": ("INT32", [1]),
            "CHUNK_INDEX": ("INT32", [1]),
            "FINISH_REASON": ("BYTES", [1]),
        }
        assert np.abs(response.as_numpy("AUDIO")).max() <= 1


def test_chunks_are_deltas_not_the_speech_so_far(caller: Any, pipeline: str) -> None:
    """S14: a stream's chunks put together are as long as the speech, not twice that."""
    answer = caller.ask(pipeline, speech(CHUNK_SCHEDULE=schedule(1, 2, 4)))
    assert [len(response.as_numpy("AUDIO")) // FRAME for response in answer.responses] == [1, 2, 4, 4, 1]
    assert len(answer.samples()) == 12 * FRAME


def test_pcm16_is_what_libsndfile_would_write(caller: Any, pipeline: str) -> None:
    answer = caller.ask(pipeline, speech(), EVERY_OUTPUT)
    expected = np.clip(np.floor(answer.samples() * np.float32(32768)), -32768, 32767).astype(np.int16)
    assert np.array_equal(answer.samples("PCM16"), expected)
    alone = caller.ask(pipeline, speech(), ("PCM16", "FINISH_REASON"))
    assert np.array_equal(alone.samples("PCM16"), expected)


def test_both_pipelines_say_the_same(caller: Any) -> None:
    one, other = (caller.ask(name, speech()) for name in ("voxcpm2", "voxcpm2_pipeline"))
    assert np.array_equal(one.samples(), other.samples())
    assert one.column("CHUNK_INDEX") == other.column("CHUNK_INDEX")


@pytest.mark.parametrize("frames", [(1,), (3,), (1, 1, 8), (64,)], ids=str)
def test_the_schedule_cuts_the_samples_and_never_changes_them(
    caller: Any, pipeline: str, frames: tuple[int, ...]
) -> None:
    whole = caller.ask(pipeline, speech(CHUNK_SCHEDULE=schedule(64)))
    cut = caller.ask(pipeline, speech(CHUNK_SCHEDULE=schedule(*frames)))
    sizes = [len(response.as_numpy("AUDIO")) // FRAME for response in cut.responses]
    assert sizes[: len(frames)] == [min(size, 12) for size in frames]
    np.testing.assert_allclose(cut.samples(), whole.samples(), rtol=0, atol=1e-5)


def test_noise_at_the_tail_of_streams(caller: Any, pipeline: str, checkpoint: Path) -> None:
    """T5: the stream is the offline result, sample for sample, to its very end."""
    streamed = caller.ask(pipeline, speech(CHUNK_SCHEDULE=schedule(1, 2, 4))).samples()
    parts = caller.ask("voxcpm2_frontend", speech(), ())
    names = ("TOKENS", "SEED", "MAX_FRAMES", "CFG_VALUE", "INFERENCE_STEPS")
    talker_inputs = {name: parts.responses[0].as_numpy(name) for name in names}
    latents = caller.ask("voxcpm2_talker", talker_inputs, ("LATENTS",)).samples("LATENTS")

    vae = load_audio_vae(checkpoint, device="cpu")
    with torch.inference_mode():
        offline = vae.decode(torch.from_numpy(latents).flatten(0, 1).T.unsqueeze(0)).flatten().numpy()
    np.testing.assert_allclose(streamed, offline, rtol=0, atol=1e-5)


def test_one_seed_one_speech(caller: Any, pipeline: str) -> None:
    """S16: the seed is obeyed, in all of its 64 bits."""
    seeds = [0, 1, 2**32 + 1, 2**63, 2**64 - 1]
    spoken = {seed: caller.ask(pipeline, speech(seed=seed, seconds=0.3)).samples() for seed in seeds}
    for seed in seeds:
        assert np.array_equal(spoken[seed], caller.ask(pipeline, speech(seed=seed, seconds=0.3)).samples())
    assert len({samples.tobytes() for samples in spoken.values()}) == len(seeds)


def test_without_a_seed_each_speech_is_another(caller: Any, pipeline: str) -> None:
    one, other = (caller.ask(pipeline, speech(seed=None)).samples() for _ in range(2))
    assert len(one) == len(other)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(("seconds", "frames"), [(0.1, 1), (0.5, 6), (1.0, 12)])
def test_max_seconds_ends_the_speech_with_length(caller: Any, pipeline: str, seconds: float, frames: int) -> None:
    """T9, S18: what is cut says so."""
    answer = caller.ask(pipeline, speech(seconds=seconds))
    assert len(answer.samples()) == frames * FRAME
    assert answer.column("FINISH_REASON")[-1] == b"length"


def test_three_characters_do_not_speak_for_half_a_minute(caller: Any, pipeline: str, checkpoint: Path) -> None:
    """S17, S18: without an end of its own the speech is cut in proportion to its text, and says so."""
    answer = caller.ask(pipeline, speech("Hi.", seconds=None))
    tokens = len(Tokenizer.from_checkpoint(checkpoint).encode("Hi."))
    assert len(answer.samples()) == int(tokens * FrontendParameters().frames_per_token + EXTRA_FRAMES) * FRAME
    assert answer.column("FINISH_REASON")[-1] == b"length"


@pytest.mark.parametrize(
    ("field", "value"),
    [("CFG_VALUE", np.array([4.0], np.float32)), ("INFERENCE_STEPS", np.array([4], np.int32))],
    ids=["CFG_VALUE", "INFERENCE_STEPS"],
)
def test_a_sampling_field_changes_the_speech(caller: Any, pipeline: str, field: str, value: Any) -> None:
    default, changed = caller.ask(pipeline, speech()), caller.ask(pipeline, speech(**{field: value}))
    assert len(default.samples()) == len(changed.samples())
    assert not np.array_equal(default.samples(), changed.samples())


def test_an_instruction_changes_the_speech(caller: Any, pipeline: str) -> None:
    plain, styled = caller.ask(pipeline, speech()), caller.ask(pipeline, speech(INSTRUCTION="A deep voice."))
    assert not np.array_equal(plain.samples(), styled.samples())


def test_the_built_in_voice_may_be_named(caller: Any, pipeline: str) -> None:
    plain, named = caller.ask(pipeline, speech()), caller.ask(pipeline, speech(VOICE="default"))
    assert np.array_equal(plain.samples(), named.samples())


def test_every_speech_has_samples(caller: Any, pipeline: str) -> None:
    """T8: nothing is skipped in silence; a text without letters is spoken or refused."""
    for text in ("a", ".", "?!", "7", "\u4f60\u597d", "caf\u00e9 \u0928\u092e\u0938\u094d\u0924\u0947"):
        answer = caller.ask(pipeline, speech(text, seconds=0.3))
        assert not answer.errors
        assert len(answer.samples()) > 0


def test_a_speech_that_ends_by_itself_says_stop(
    serving: Callable[..., AbstractContextManager[Any]], calling: Callable[[str], AbstractContextManager[Any]]
) -> None:
    """T8: also the shortest speech has samples, and its last chunk an end."""
    with serving({}, stops_at_once=True) as server, calling(server.grpc_url) as caller:
        for name in ("voxcpm2", "voxcpm2_pipeline"):
            answer = caller.ask(name, speech(CHUNK_SCHEDULE=schedule(1)))
            assert answer.column("FINISH_REASON") == [b"", b"", b"", b"stop"]
            assert (len(answer.samples()), answer.finals) == (4 * FRAME, 1)


def test_a_call_without_a_stream_is_refused_in_words(speech_server: Any, pipeline: str) -> None:
    text = InferInput("TEXT", [1], "BYTES").set_data_from_numpy(np.array([b"Hi."], np.object_))
    with InferenceServerClient(speech_server.grpc_url) as client, pytest.raises(InferenceServerException) as error:
        client.infer(pipeline, [text])
    assert "decoupled" in str(error.value)
    assert error.value.status() == "StatusCode.UNIMPLEMENTED"
