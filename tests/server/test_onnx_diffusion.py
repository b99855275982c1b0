"""The diffusion stage on ONNX Runtime answers through the real server as it does on torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tests.server.test_diffusion_stage import ask, part, rows

from triton_speech.serve.errors import SpeechSetupError

# The first test that needs a graph waits for its export: a minute, on a busy machine several.
pytestmark = pytest.mark.timeout(900)

DIT, SPLIT = "voxcpm2_dit", "voxcpm2_split"
LIMIT = 1e-4
Serving = Callable[..., AbstractContextManager[Any]]


def runtime(exported: Any, name: str, **others: object) -> dict[str, dict[str, object]]:
    return {DIT: {"runtime": name, "onnx_graphs": exported.repository("dit"), **others}}


@pytest.fixture(scope="module", params=[{}, {"deterministic": True}, {"cfg_cutoff_ratio": 0.5}], ids=str)
def servers(serving: Serving, exported: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """One on ONNX Runtime, one on torch, else the same."""
    with (
        serving(runtime(exported, "onnxruntime", **request.param), exported.checkpoint, pipelines=(SPLIT,)) as onnx,
        serving(runtime(exported, "torch", **request.param), exported.checkpoint, pipelines=(SPLIT,)) as torch,
    ):
        yield onnx, torch


def test_rows_of_any_steps_and_guidance_equal_torch(servers: tuple[Any, Any]) -> None:
    given = rows(11, steps=(10, 4, 2, 17))
    made = []
    for server in servers:
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            made.append(ask(client, given))
            assert np.allclose(made[-1][3], ask(client, part(given, 3))[0], atol=LIMIT)
    ours, theirs = made
    assert theirs.any()
    assert np.abs(ours - theirs).max() < LIMIT


def test_a_stream_begins_as_on_torch_and_lasts_as_long(servers: tuple[Any, Any], calling: Any) -> None:
    """Its first frame: what follows may part ways, for a last bit may flip a level of the quantiser."""
    asked = {"TEXT": "Hello there.", "SEED": np.array([7], np.uint64), "MAX_SECONDS": np.array([1], np.float32)}
    heard = []
    for server in servers:
        with calling(server.grpc_url) as caller:
            answer = caller.ask(SPLIT, {**asked, "CHUNK_SCHEDULE": np.array([1], np.int32)})
            assert (answer.errors, answer.finals) == ([], 1)
            heard.append([response.as_numpy("AUDIO") for response in answer.responses])
    ours, theirs = heard
    assert [len(chunk) for chunk in ours] == [len(chunk) for chunk in theirs]
    assert theirs[0].any()
    assert np.abs(ours[0] - theirs[0]).max() < LIMIT


def test_without_a_graph_the_server_says_how_to_make_one(serving: Serving, exported: Any, tmp_path: Any) -> None:
    with (
        pytest.raises(SpeechSetupError, match="triton-speech export dit --checkpoint tiny --onnx DIR"),
        serving({DIT: {"runtime": "onnxruntime", "onnx_graphs": tmp_path}}, exported.checkpoint, pipelines=(SPLIT,)),
    ):
        pass
