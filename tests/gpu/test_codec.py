"""The codec on a GPU: its graphs are its plain step, and no stream hears another."""

from __future__ import annotations

import json
import queue
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_speech.families.voxcpm2.audio_vae import AudioVAE
from triton_speech.families.voxcpm2.codec import VoxCPM2Codec
from triton_speech.families.voxcpm2.config import VoxCPM2Config
from triton_speech.families.voxcpm2.streaming_decoder import StreamingDecoder
from triton_speech.stage.codec_worker import Chunk, CodecWorker
from triton_speech.streaming.batcher import PIECES
from triton_speech.streaming.slots import SlotTable
from triton_speech.streaming.window import CoalescingWindow

DEVICE = "cuda"
ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-6
PATCH, DIM = 2, 32
STREAMS = 64


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    """The quickstart voice: random weights would lift rounding errors above those of speech."""
    return ROOT / "checkpoints" / "quickstart"


@pytest.fixture(scope="module")
def captured(checkpoint: Path) -> VoxCPM2Codec:
    return load(checkpoint)


@pytest.fixture
def codec(captured: VoxCPM2Codec) -> VoxCPM2Codec:
    """With graphs of batches up to 64 patches, and no stream in it."""
    forget(captured)
    return captured


@pytest.fixture
def plain(checkpoint: Path) -> VoxCPM2Codec:
    return load(checkpoint, graphs=False)


@pytest.fixture(autouse=True)
def full_precision() -> None:
    torch.set_float32_matmul_precision("highest")


def load(checkpoint: Path, device: str = DEVICE, *, max_batch: int = STREAMS, **options: Any) -> VoxCPM2Codec:
    options = {"pieces": PIECES, **options}
    return VoxCPM2Codec.from_checkpoint(checkpoint, slots=STREAMS + 1, device=device, max_batch=max_batch, **options)


def draw(batch: int, patches: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, patches, PATCH, DIM, generator=torch.Generator().manual_seed(seed))


def forget(codec: VoxCPM2Codec) -> None:
    for slot in range(1, STREAMS + 1):
        codec.reset(slot)


def state(codec: VoxCPM2Codec) -> torch.Tensor:
    return codec._state.rows.clone()


def alone(codec: VoxCPM2Codec, patches: torch.Tensor) -> torch.Tensor:
    """A stream (T, P, D) patch by patch in slot 1."""
    codec.reset(1)
    samples = [codec.decode(patch.view(1, 1, PATCH, DIM), [1])[0] for patch in patches]
    codec.reset(1)
    return torch.cat(samples)


def test_gpu_equals_cpu(checkpoint, codec):
    on_cpu = load(checkpoint, "cpu").decode(draw(3, 2), [1, 2, 3])
    assert (on_cpu - codec.decode(draw(3, 2), [1, 2, 3])).abs().max() < 1e-4


@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (8, 8), (16, 2), (64, 1)])
def test_a_graph_is_the_plain_step_bit_for_bit(codec, plain, shape):
    slots = list(range(1, shape[0] + 1))
    for seed in range(3):
        given = draw(*shape, seed=seed)
        assert torch.equal(codec.decode(given, slots), plain.decode(given, slots))
    assert torch.equal(state(codec)[1:], state(plain)[1:])


@pytest.mark.parametrize("batch", [5, 7, 11, 33])
def test_padding_rows_change_no_state_and_no_sample(codec, plain, batch):
    everybody = list(range(1, STREAMS + 1))
    for one in (codec, plain):
        one.decode(draw(STREAMS, 1), everybody)
    before = state(codec)
    slots = random.Random(batch).sample(everybody, batch)
    heard = codec.decode(draw(batch, 1, seed=1), slots)
    assert (heard - plain.decode(draw(batch, 1, seed=1), slots)).abs().max() < TOLERANCE
    others = [slot for slot in everybody if slot not in slots]
    assert torch.equal(state(codec)[others], before[others])


def test_a_batch_beyond_the_largest_graph_runs_eagerly(checkpoint, plain):
    codec = load(checkpoint, max_batch=4)
    for batch, patches in ((9, 1), (2, 3), (64, 8), (1, 1)):
        slots = list(range(1, batch + 1))
        given = draw(batch, patches, seed=batch)
        assert (codec.decode(given, slots) - plain.decode(given, slots)).abs().max() < TOLERANCE


def test_samples_belong_to_their_receiver(codec):
    """Later replays, of the same graph and of others, leave them as they were."""
    launched = [codec.launch(draw(4, 1 + seed % 2, seed), [1, 2, 3, 4]) for seed in range(8)]
    early = [batch.result() for batch in launched]
    copies = [samples.clone() for samples in early]
    for seed in range(20):
        codec.decode(draw(1 + seed, 1, 100 + seed), list(range(1, seed + 2)))
    assert all(torch.equal(samples, copy) for samples, copy in zip(early, copies, strict=True))
    forget(codec)
    again = [codec.decode(draw(4, 1 + seed % 2, seed), [1, 2, 3, 4]) for seed in range(8)]
    assert all(torch.equal(samples, copy) for samples, copy in zip(again, copies, strict=True))


def test_a_reset_comes_after_what_still_runs(codec):
    fresh = codec.decode(draw(1, 1), [1])
    codec.launch(draw(64, 1, seed=1), list(range(1, 65)))
    codec.reset(1)
    assert torch.equal(codec.decode(draw(1, 1), [1]), fresh)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_64_interleaved_streams_sound_as_each_does_alone(codec, in_flight):
    """Through the stage's worker, whose thread is another one than that which captured the graphs."""
    rng = random.Random(in_flight)
    streams = {str(i): draw(1, rng.randint(1, 20), seed=i)[0] for i in range(STREAMS)}
    solos = {name: alone(codec, patches) for name, patches in streams.items()}
    worker = CodecWorker(codec, SlotTable(STREAMS, 60, first=1), CoalescingWindow(STREAMS), batches_in_flight=in_flight)
    left = {name: list(patches.split([1] * len(patches))) for name, patches in streams.items()}
    answers: dict[str, list[queue.SimpleQueue[Any]]] = {name: [] for name in streams}
    while left:
        name = rng.choice(list(left))
        size = rng.choice([1, 2, 3, 4, 8])
        chunk, left[name] = left[name][:size], left[name][size:]
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        finish = "" if left[name] else "stop"
        worker.submit(Chunk(name, len(answers[name]), torch.cat(chunk), 0, finish, answer.put))
        answers[name].append(answer)
        if not left[name]:
            del left[name]
    for name, solo in solos.items():
        heard = torch.cat([torch.from_numpy(answer.get(timeout=60)) for answer in answers[name]])
        assert (heard - solo).abs().max() < TOLERANCE
    worker.close()


def test_deterministic_streams_are_the_same_bits_in_any_company(checkpoint):
    codec = load(checkpoint, max_batch=1)
    streams = [draw(1, 6, seed=i)[0] for i in range(8)]
    solos = [alone(codec, patches) for patches in streams]
    heard: list[list[torch.Tensor]] = [[] for _ in streams]
    for step in range(6):
        for i in random.Random(step).sample(range(8), 8):
            heard[i].append(codec.decode(streams[i][step].view(1, 1, PATCH, DIM), [i + 1])[0])
    assert all(torch.equal(torch.cat(parts), solo) for parts, solo in zip(heard, solos, strict=True))


def test_nan_in_one_stream_is_heard_in_no_other(codec):
    given = draw(6, 1)
    clean = codec.decode(given, [1, 2, 3, 4, 5, 6])
    forget(codec)
    poisoned = given.clone()
    poisoned[2, 0, 0, 0] = torch.nan
    heard = codec.decode(poisoned, [1, 2, 3, 4, 5, 6])
    others = [0, 1, 3, 4, 5]
    assert heard[2].isnan().any()
    assert torch.equal(heard[others], clean[others])
    codec.reset(3)
    assert codec.decode(given[2:3], [3]).isfinite().all()


def test_tf32_is_close(checkpoint, codec):
    given = draw(8, 2)
    exact = codec.decode(given, list(range(1, 9)))
    torch.set_float32_matmul_precision("high")
    close = load(checkpoint, max_batch=16).decode(given, list(range(1, 9)))
    assert (exact - close).abs().max() < 1e-2


def test_graphs_serve_a_thread_that_did_not_capture_them(codec):
    expected = codec.decode(draw(3, 1), [1, 2, 3])
    forget(codec)
    heard: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: heard.append(codec.decode(draw(3, 1), [1, 2, 3])))
    thread.start()
    thread.join(60)
    assert torch.equal(heard[0], expected)


def test_full_size_streams_sound_together_as_alone():
    """Random weights of the real size, where its configuration is at hand."""
    path = ROOT.parent / "shared" / "data" / "voxcpm2" / "config.json"
    if not path.is_file():
        pytest.skip("the configuration of VoxCPM2 is not beside the project")
    config = VoxCPM2Config.model_validate(json.loads(path.read_text(encoding="utf-8")))
    torch.manual_seed(0)
    vae = AudioVAE(config.audio_vae_config).eval().requires_grad_(False).to(DEVICE)
    codec = VoxCPM2Codec(StreamingDecoder(vae), config, 17, max_batch=16, pieces=PIECES)
    given = torch.randn(12, 4, *codec.patch_shape, generator=torch.Generator().manual_seed(0))
    together = codec.decode(given, list(range(1, 13)))
    for row in range(12):
        codec.reset(16)
        single = torch.cat([codec.decode(given[row : row + 1, t : t + 1], [16]) for t in range(4)], dim=1)
        assert (single[0] - together[row]).abs().max() < 1e-5
