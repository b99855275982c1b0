"""Batches of the codec: each stream hears itself, whoever else is decoded."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_speech.families.captured_decode import graph_shapes
from triton_speech.families.codec_buffers import Packing
from triton_speech.families.voxcpm2.checkpoint import load_audio_vae
from triton_speech.families.voxcpm2.codec import VoxCPM2Codec
from triton_speech.families.voxcpm2.onnx_codec import OnnxCodec

# The first test that needs a graph waits for its export: a minute, on a busy machine several.
pytestmark = pytest.mark.timeout(900)

TOLERANCE = 1e-6
PATCH, DIM = 2, 32


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    """The quickstart voice: random weights would lift rounding errors above those of speech."""
    return Path(__file__).resolve().parents[3] / "checkpoints" / "quickstart"


@pytest.fixture(params=["torch", "onnxruntime"])
def new_codec(request: pytest.FixtureRequest, checkpoint: Path) -> Callable[[int], Any]:
    """A codec with so many slots, on each of the runtimes."""
    if request.param == "torch":
        return lambda slots: VoxCPM2Codec.from_checkpoint(checkpoint, slots=slots)
    graphs = request.getfixturevalue("quickstart_codec_graphs")
    return lambda slots: OnnxCodec(checkpoint, graphs, slots=slots)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, PATCH, DIM, generator=torch.Generator().manual_seed(seed))


def whole(checkpoint: Path, patches: torch.Tensor) -> torch.Tensor:
    """What the AudioVAE itself makes of a stream (T, P, D), all at once."""
    return load_audio_vae(checkpoint).decode(patches.flatten(0, 1).t().unsqueeze(0))[0]


@pytest.mark.parametrize("seed", range(3))
def test_sixteen_streams_in_random_batches_sound_as_each_would_alone(
    checkpoint: Path, new_codec: Callable[[int], Any], seed: int
) -> None:
    """T4, T5, S15."""
    rng = random.Random(seed)
    codec = new_codec(17)
    streams = {slot: draw(rng.randint(1, 12), seed=slot) for slot in range(1, 17)}
    done = dict.fromkeys(streams, 0)
    heard: dict[int, list[torch.Tensor]] = {slot: [] for slot in streams}
    while active := [slot for slot in streams if done[slot] < len(streams[slot])]:
        batch = rng.sample(active, rng.randint(1, len(active)))
        piece = min(rng.choice([1, 2, 4]), *(len(streams[slot]) - done[slot] for slot in batch), 4)
        patches = torch.stack([streams[slot][done[slot] : done[slot] + piece] for slot in batch])
        for slot, samples in zip(batch, codec.decode(patches, batch), strict=True):
            heard[slot].append(samples)
            done[slot] += piece
    for slot, patches in streams.items():
        assert (torch.cat(heard[slot]) - whole(checkpoint, patches)).abs().max() < TOLERANCE


def test_patch_by_patch_alone_no_bit_depends_on_what_came_between(new_codec: Callable[[int], Any]) -> None:
    """What `deterministic` rests on."""
    codec = new_codec(4)
    one, other = draw(6, seed=1), draw(6, seed=2)
    alone = [codec.decode(patch.view(1, 1, PATCH, DIM), [1]) for patch in one]
    codec.reset(1)
    beside = []
    for mine, others in zip(one, other, strict=True):
        codec.decode(others.view(1, 1, PATCH, DIM), [2])
        beside.append(codec.decode(mine.view(1, 1, PATCH, DIM), [1]))
    assert torch.equal(torch.cat(alone, dim=1), torch.cat(beside, dim=1))


def test_a_slot_that_is_reset_has_no_past(new_codec: Callable[[int], Any]) -> None:
    codec = new_codec(3)
    first = codec.decode(draw(1, 2), [1])
    codec.decode(draw(1, 2, seed=5), [2])
    codec.reset(1)
    assert torch.equal(codec.decode(draw(1, 2), [1]), first)


def test_samples_belong_to_their_receiver(new_codec: Callable[[int], Any]) -> None:
    """Also those that are fetched only after later batches were launched."""
    codec = new_codec(2)
    launched = [codec.launch(draw(1, 1, seed=seed), [1]) for seed in range(7)]
    codec.reset(1)
    expected = [codec.decode(draw(1, 1, seed=seed), [1]) for seed in range(7)]
    assert all(torch.equal(batch.result(), samples) for batch, samples in zip(launched, expected, strict=True))
    assert len({batch.result().data_ptr() for batch in launched}) == 7


def test_padding_rows_change_no_stream(new_codec: Callable[[int], Any]) -> None:
    codec = new_codec(4)
    codec.decode(draw(3, 2), [1, 2, 3])
    before = codec._state.rows.clone()
    codec.decode(draw(3, 2, seed=1), [0, 0, 0])
    assert torch.equal(codec._state.rows[1:], before[1:])


@pytest.mark.parametrize("max_batch", [1, 2, 5, 7, 16, 50, 64, 256])
@pytest.mark.parametrize("pieces", [(1,), (1, 2, 4, 8)])
def test_every_batch_that_may_come_has_a_graphs_shape(max_batch: int, pieces: tuple[int, ...]) -> None:
    shapes = graph_shapes(max_batch, pieces)
    assert len(set(shapes)) == len(shapes)
    needed = set()
    for piece in pieces:
        for batch in range(1, max_batch // piece + 1):
            padded = min(size for size, patches in shapes if patches == piece and size >= batch)
            assert padded < 1.5 * batch + 1
            needed.add((padded, piece))
    assert needed == set(shapes), "no graph is captured for nothing"


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_slots_and_patches_share_a_buffer_and_nothing_else(batch: int) -> None:
    packing = Packing((PATCH, DIM))
    buffer = torch.zeros(packing.bytes(batch, 4), dtype=torch.uint8)
    packed = packing.open(buffer, batch, 4)
    packed.slots.copy_(torch.arange(batch))
    packed.patches.fill_(1.0)
    assert packed.slots.tolist() == list(range(batch))
    assert packed.patches.shape == (batch, 4, PATCH, DIM)
    assert (packed.patches.data_ptr() - buffer.data_ptr()) % 16 == 0
