"""The exported repository in a real Triton with its onnxruntime backend, which the wheel does not carry.

In NVIDIA's container it is there. Elsewhere TRITON_BACKENDS names a folder that holds onnxruntime/, with the backend of
the server's release.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

from triton_speech.serve.locate import find_server

# The first test that needs a graph waits for its export: a minute, on a busy machine several.
pytestmark = pytest.mark.timeout(900)

LIMIT = 1e-4
READY_SECONDS = 120.0
STATELESS = ("voxcpm2_codec_decode", "voxcpm2_dit_round", "voxcpm2_dit_solver", "voxcpm2_reference_encoder")


@pytest.fixture(scope="module")
def triton(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpcclient.InferenceServerClient]:
    """A client of a server that serves what was exported, as it was exported."""
    install = find_server()
    backends = Path(os.environ.get("TRITON_BACKENDS") or install.backend_directory or "nowhere")
    if not (backends / "onnxruntime").is_dir():
        pytest.skip("no Triton backend onnxruntime is here")
    folder = tmp_path_factory.mktemp("triton")
    ports = free_ports()
    named = [f"--{service}-port={port}" for service, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    command = [
        install.executable,
        f"--model-repository={exported.repository()}",
        f"--backend-directory={backends}",
        *named,
    ]
    command += ["--disable-auto-complete-config", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, env=install.environment(dict(os.environ)), stdout=log, stderr=log)
    try:
        client = grpcclient.InferenceServerClient(f"127.0.0.1:{ports[1]}")
        wait_ready(client, server, folder / "log")
        yield client
    finally:
        server.terminate()
        server.wait(60)


def free_ports() -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_ready(client: grpcclient.InferenceServerClient, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text(encoding="utf-8")[-4000:]
        try:
            if client.is_server_ready():
                return
        except grpcclient.InferenceServerException:
            time.sleep(0.1)
    raise AssertionError("not ready in time")


def tensor(name: str, array: Any) -> grpcclient.InferInput:
    given = grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    given.set_data_from_numpy(np.ascontiguousarray(array))
    return given


@pytest.mark.parametrize("name", STATELESS)
def test_a_graph_gives_what_torch_gives(triton: grpcclient.InferenceServerClient, exported: Any, name: str) -> None:
    graph = exported.graph(name)
    inputs = graph.draw(3, 6, seed=7)
    given = [tensor(port.name, value.numpy()) for port, value in zip(graph.inputs, inputs, strict=True)]
    answer = triton.infer(name, given)
    for port, expected in zip(graph.outputs, graph.torch(*inputs), strict=True):
        assert np.abs(answer.as_numpy(port.name) - expected.numpy()).max() < LIMIT


def test_streams_keep_their_state_in_the_server_and_join_without_seams(
    triton: grpcclient.InferenceServerClient, exported: Any
) -> None:
    """Sixteen at once, each a sequence of chunks of its own sizes; an id is used again by a later stream."""
    whole = exported.graph("voxcpm2_codec_decode")

    def largest(seed: int) -> float:
        rng = random.Random(seed)
        (latents,) = whole.draw(1, rng.randint(3, 20), seed)
        heard, at, frames = [], 0, latents.shape[1]
        while at < frames:
            taken = min(rng.choice([1, 1, 2, 4]), frames - at)
            flags = {"sequence_start": at == 0, "sequence_end": at + taken == frames}
            given = [tensor("LATENTS", latents[:, at : at + taken].numpy())]
            answer = triton.infer("voxcpm2_codec_step", given, sequence_id=1 + seed % 16, **flags)
            heard.append(answer.as_numpy("AUDIO"))
            at += taken
        (expected,) = whole.torch(latents)
        return float(np.abs(np.concatenate(heard, axis=1) - expected.numpy()).max())

    for first in (0, 16):
        with ThreadPoolExecutor(16) as threads:
            assert max(threads.map(largest, range(first, first + 16))) < LIMIT
