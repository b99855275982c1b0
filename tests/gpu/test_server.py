"""The whole server on a GPU, profile ``low_latency``: vLLM's talker and the codec's graphs behind real gRPC clients."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here")
pytest.importorskip("tritonclient", reason="tritonclient is not installed here")

from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.serve.layout import find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer
from triton_speech_client import InvalidRequest, SpeechClient

ROOT = Path(__file__).resolve().parents[2]
# The first start on a host compiles kernels.
READY_SECONDS = 280.0
SECONDS = 1.6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    # FlashAttention computes in bfloat16 and knows no narrower heads of use.
    folder = tmp_path_factory.mktemp("checkpoints") / "voxcpm2_tiny"
    checkpoint = write_tiny_checkpoint(folder, head_dim=64, dtype="bfloat16")
    settings = ServerSettings(find_models(ROOT), checkpoint, profile="low_latency", ports=Ports(0, 0, 0))
    with TritonServer(settings) as server:
        server.wait_ready(READY_SECONDS)
        yield server


@pytest.fixture(params=["voxcpm2", "voxcpm2_pipeline"])
def client(server: TritonServer, request: pytest.FixtureRequest) -> Iterator[SpeechClient]:
    with SpeechClient(server.grpc_url, request.param) as client:
        yield client


def say(client: SpeechClient, seed: int, **options) -> np.ndarray:
    chunks = list(client.stream("Good morning to all of you.", seed=seed, max_seconds=SECONDS, **options))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [bool(chunk.finish_reason) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return np.concatenate([chunk.samples for chunk in chunks])


def test_a_seed_says_the_same_again_and_chunks_do_not_change_it(client):
    samples = say(client, 1)
    assert len(samples) == SECONDS * 48_000
    assert np.abs(samples).max() > 0.01
    assert np.array_equal(say(client, 1), samples)
    assert np.abs(say(client, 1, chunk_schedule=[3, 1, 5]) - samples).max() < 1e-5
    assert not np.array_equal(say(client, 2), samples)


def test_many_streams_at_once_all_come_to_their_end(client):
    with ThreadPoolExecutor(12) as threads:
        every = list(threads.map(lambda seed: say(client, seed), range(24)))
    assert all(len(samples) == SECONDS * 48_000 and np.isfinite(samples).all() for samples in every)
    assert len({samples.tobytes() for samples in every}) == 24


def test_streams_that_are_left_give_their_places_back(client):
    # In all more than the talker runs and queues at once, so that places which are lost are missed.
    for round_ in range(5):
        streams = [client.stream("word " * 40, seed=seed) for seed in range(8)]
        for stream in streams:
            next(stream)
        for stream in streams:
            stream.close()
        assert len(say(client, round_)) == SECONDS * 48_000


def test_what_is_wrong_is_refused_and_the_next_request_is_served(client):
    with pytest.raises(InvalidRequest, match=r"^INFERENCE_STEPS: .*at most 10"):
        say(client, 1, inference_steps=50)
    assert len(say(client, 1)) == SECONDS * 48_000
