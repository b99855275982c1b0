"""The diffusion head, the solver and the speech tokenizers against upstream's, and text against its processor."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_speech.families.noise import gaussian
from triton_speech.families.vibevoice import load_reference_encoder
from triton_speech.families.vibevoice.checkpoint import load_listener, load_speaker
from triton_speech.families.vibevoice.prompt import write_words
from triton_speech.families.vibevoice.script import read_script
from triton_speech.families.vibevoice.solver import Solver
from triton_speech.families.vibevoice.tokenizer import Tokenizer, read_controls

LIMIT = 1e-4
Checkpoint = Callable[[str], Path]
RECORDINGS = ("short", "whole", "long")
HOP = 3200


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Any:
    return load_speaker(checkpoint("untied")).model


def test_the_diffusion_heads_velocities_are_upstreams(goldens: Any, model: Any) -> None:
    given = [goldens.tensors[f"head/{name}"] for name in ("latents", "times", "conditions")]
    goldens.check("diffusion head", model.prediction_head(*given), goldens.tensors["head/velocities"], LIMIT)


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 20])
def test_solved_latents_are_upstreams(goldens: Any, model: Any, steps: int) -> None:
    solver = Solver(model.config.diffusion_head_config)
    noise = gaussian(torch.tensor([goldens.notes["seed"]]), torch.tensor([steps]), 64)
    scale, counts = torch.tensor([goldens.notes["scale"]]), torch.tensor([steps])
    latents = solver.sample(model.prediction_head, goldens.tensors["solver/conditions"], noise, scale, counts, steps)
    goldens.check(f"solver, {steps} steps", latents, goldens.tensors[f"solver/{steps}"], LIMIT)


def test_streams_with_different_steps_share_a_batch(goldens: Any, model: Any) -> None:
    counts = torch.tensor([20, 3, 10])
    stream, negative = goldens.tensors["solver/conditions"].split(1)
    noise = gaussian(torch.full((3,), goldens.notes["seed"]), counts, 64)
    conditions = torch.cat((stream.expand(3, -1), negative.expand(3, -1)))
    solver, scale = Solver(model.config.diffusion_head_config), torch.full((3,), goldens.notes["scale"])
    latents = solver.sample(model.prediction_head, conditions, noise, scale, counts, 20)
    theirs = torch.cat([goldens.tensors[f"solver/{count}"] for count in counts.tolist()])
    goldens.check("solver, 20, 3 and 10 steps in a batch", latents, theirs, LIMIT)


def test_decoded_audio_is_upstreams(goldens: Any, model: Any) -> None:
    audio = model.acoustic_tokenizer.decoder(goldens.tensors["decoder/latents"][None])[0]
    stride = goldens.notes["audio_stride"]
    goldens.check("acoustic decoder: at once", audio[::stride], goldens.tensors["decoder/audio"], LIMIT)


@pytest.mark.parametrize("sizes", [(1,) * 12, (5, 7), (1, 2, 4, 5)])
def test_audio_decoded_in_pieces_is_upstreams_and_the_whole(goldens: Any, model: Any, sizes: tuple[int, ...]) -> None:
    decoder, latents = model.acoustic_tokenizer.decoder, goldens.tensors["decoder/latents"][None]
    rows = decoder.new_rows(1)
    audio = torch.cat([decoder.run(piece, rows)[0] for piece in latents.split(sizes, dim=1)])
    stride = goldens.notes["audio_stride"]
    goldens.check("acoustic decoder: in pieces", audio[::stride], goldens.tensors["decoder/audio"], LIMIT)
    goldens.check("acoustic decoder: pieces against whole", audio, decoder(latents)[0], 1e-5)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_acoustic_encoders_means_are_upstreams(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    mean = load_listener(checkpoint("untied")).model.acoustic_tokenizer.encoder(goldens.audio(name)[None])[0]
    goldens.check("acoustic encoder", mean, goldens.tensors[f"encode/{name}/acoustic"], LIMIT)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_semantic_encoders_features_are_upstreams(goldens: Any, model: Any, name: str) -> None:
    features = model.semantic_tokenizer.encoder(goldens.audio(name)[None])[0]
    goldens.check("semantic encoder", features, goldens.tensors[f"encode/{name}/semantic"], LIMIT)


def test_what_is_heard_frame_by_frame_is_upstreams(goldens: Any, model: Any) -> None:
    encoder = model.semantic_tokenizer.encoder
    rows = encoder.new_rows(1)
    heard = torch.cat([encoder.run(piece[None], rows)[0] for piece in goldens.audio("whole").split(HOP)])
    goldens.check("semantic encoder: frame by frame", heard, goldens.tensors["feedback/semantic"], LIMIT)
    goldens.check("semantic encoder: frames against whole", heard, encoder(goldens.audio("whole")[None])[0], 1e-5)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_voices_features_are_upstreams(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    features = load_reference_encoder(checkpoint("untied")).features(goldens.audio(name).numpy())
    goldens.check("voice: loudness, noise and scale", features, goldens.tensors[f"encode/{name}/features"], LIMIT)


def test_token_ids_are_upstreams(goldens: Any, checkpoint: Checkpoint) -> None:
    tokenizer = Tokenizer.from_checkpoint(checkpoint("tied"), 1000)
    sentences = goldens.notes["sentences"]
    assert [tokenizer.encode(text) for text, _ in sentences] == [ids for _, ids in sentences]


@pytest.mark.parametrize("name", ["one", "from_zero", "four"])
def test_the_prompt_of_a_script_is_upstreams(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    folder, note = checkpoint("tied"), goldens.notes["scripts"][name]
    controls = read_controls(folder, 1000)
    words = write_words(read_script(note["text"]), (), Tokenizer.from_checkpoint(folder, 1000), controls, 1000)
    rows = torch.tensor([[voice, 0.0] for voice in range(note["voices"])])
    tokens = words.with_voices(rows if note["voices"] else None).tokens
    frames = -(-len(goldens.audio("whole")) // HOP)
    spread = [one for token in tokens for one in ([controls.frame] * frames if token >= 1000 else [token])]
    assert spread == note["tokens"]
