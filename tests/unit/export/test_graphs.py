"""The graphs compute what the stages run, in batches and lengths that they were not traced with."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.unit.voxcpm2.test_streaming_decoder import CONFIGS, LATENT_DIM, cut, random_vae

from triton_speech.export.check import LIMIT
from triton_speech.families.onnx_session import OnnxSession
from triton_speech.families.voxcpm2.checkpoint import load_audio_vae
from triton_speech.families.voxcpm2.portable import NAMES
from triton_speech.families.voxcpm2.portable_codec import CodecStep
from triton_speech.families.voxcpm2.portable_dit import load_solver
from triton_speech.families.voxcpm2.streaming_decoder import StreamingDecoder

# The first test that needs a graph waits for its export: a minute, on a busy machine several.
pytestmark = pytest.mark.timeout(900)


def run(exported: Any, name: str, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What ONNX Runtime makes of the inputs, in the graph's order."""
    graph = exported.graph(name)
    given = {port.name: tensor.contiguous() for port, tensor in zip(graph.inputs, inputs, strict=True)}
    outputs = {
        port.name: torch.full_like(tensor.contiguous(), torch.nan)
        for port, tensor in zip(graph.outputs, graph.torch(*inputs), strict=True)
    }
    OnnxSession(exported.path(name)).run(given, outputs)
    return list(outputs.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("batch", "patches"), [(1, 1), (7, 1), (2, 3), (4, 13)])
def test_a_graph_equals_torch_in_any_batch_and_length(exported: Any, name: str, batch: int, patches: int) -> None:
    inputs = exported.graph(name).draw(batch, patches, seed=100)
    for ours, theirs in zip(run(exported, name, *inputs), exported.graph(name).torch(*inputs), strict=True):
        assert (ours - theirs).abs().max() < LIMIT
        assert theirs.std() > 1e-3, "silence would prove nothing"


def test_the_chunks_of_a_stream_join_without_seams(exported: Any) -> None:
    """The state that one step gives and the next one takes is all that it needs of the past."""
    graph = exported.graph("voxcpm2_codec_step")
    latents, empty = graph.draw(3, 17)
    whole = load_audio_vae(exported.checkpoint).decode(latents.flatten(1, 2).transpose(1, 2))
    for longest in (1, 3, 8):
        state, heard = torch.zeros_like(empty), []
        for piece in torch.split(latents, cut(17, random.Random(longest), longest), dim=1):
            audio, state = run(exported, graph.name, piece, state)
            heard.append(audio)
        assert (torch.cat(heard, dim=1) - whole).abs().max() < LIMIT


@pytest.mark.parametrize("name", CONFIGS)
def test_every_kind_of_decoder_has_a_graph_form(name: str) -> None:
    """Which gives the samples of the streaming decoder, and the same state, in its order."""
    vae = random_vae(**CONFIGS[name]).double()
    decoder, step = StreamingDecoder(vae), CodecStep(vae)
    assert step.floats == decoder.floats_per_slot
    rows = torch.zeros(2, step.floats, dtype=torch.float64)
    for frames in (1, 3, 20):
        latents, before = torch.randn(2, LATENT_DIM, frames, dtype=torch.float64), rows.clone()
        expected = decoder.step(latents, rows)
        audio, after = step(latents.transpose(1, 2).unsqueeze(1), before)
        assert (audio - expected).abs().max() < 1e-14
        assert (after - rows).abs().max() < 1e-12


def test_rows_with_noise_guidance_and_steps_of_their_own_share_a_batch(exported: Any) -> None:
    graph = exported.graph("voxcpm2_dit_solver")
    noise, mu, cond, _, _ = graph.draw(3, 1)
    guidance, counts = torch.tensor([[0.0], [2.0], [3.5]]), torch.tensor([[2], [4], [3]], dtype=torch.int32)
    (together,) = run(exported, graph.name, noise, mu, cond, guidance, counts)
    solver = load_solver(exported.checkpoint)
    for row, count in enumerate(counts[:, 0].long()):
        one = slice(row, row + 1)
        alone = solver.solve(noise[one], mu[one], cond[one], guidance[one, 0], count.view(1), int(count))
        assert (together[one] - alone).abs().max() < LIMIT


def test_rounds_of_different_solvers_share_a_batch(exported: Any) -> None:
    graph = exported.graph("voxcpm2_dit_round")
    inputs = graph.draw(3, 1, seed=4)
    (together,) = run(exported, graph.name, *inputs)
    for row in range(3):
        (alone,) = run(exported, graph.name, *(tensor[row : row + 1] for tensor in inputs))
        assert (together[row] - alone[0]).abs().max() < LIMIT
