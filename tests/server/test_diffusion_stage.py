"""The diffusion stage called directly: rows that share a batch, and rows that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

MODEL = "voxcpm2_dit"
H, PATCH = 64, (2, 8)
MAX_STEPS = 20
Rows = dict[str, Any]


@pytest.fixture(scope="module")
def dit(serving: Callable[..., AbstractContextManager[Any]]) -> Iterator[grpcclient.InferenceServerClient]:
    with (
        serving({MODEL: {"max_inference_steps": MAX_STEPS}}, pipelines=("voxcpm2_split",)) as server,
        grpcclient.InferenceServerClient(server.grpc_url) as client,
    ):
        yield client


def rows(count: int, first_seed: int = 0, steps: tuple[int, ...] = (10,)) -> Rows:
    source = np.random.default_rng(first_seed)
    return {
        "MU": source.standard_normal((count, H)).astype(np.float32),
        "COND": source.standard_normal((count, *PATCH)).astype(np.float32),
        "SEED": np.arange(first_seed, first_seed + count, dtype=np.uint64)[:, None],
        "POSITION": np.arange(count, dtype=np.int64)[:, None],
        "CFG_VALUE": np.linspace(0, 4, count, dtype=np.float32)[:, None],
        "INFERENCE_STEPS": np.array([steps[n % len(steps)] for n in range(count)], np.int32)[:, None],
    }


def part(given: Rows, row: int) -> Rows:
    return {name: values[row : row + 1] for name, values in given.items()}


def ask(client: grpcclient.InferenceServerClient, given: Rows) -> Any:
    tensors = []
    for name, values in given.items():
        tensor = grpcclient.InferInput(name, values.shape, np_to_triton_dtype(values.dtype))
        tensors.append(tensor.set_data_from_numpy(values))
    return client.infer(MODEL, tensors).as_numpy("LATENT")


def test_rows_of_one_request_are_what_each_is_alone(dit: Any) -> None:
    """Whatever their seeds, guidance and numbers of steps."""
    given = rows(9, steps=(10, 4, 2, 20))
    together = ask(dit, given)
    assert together.shape == (9, *PATCH)
    assert together.any()
    for row in range(9):
        assert np.allclose(together[row], ask(dit, part(given, row))[0], atol=1e-5)


def test_requests_that_come_at_once_are_what_each_is_alone(dit: Any) -> None:
    every = [rows(1 + seed % 3, seed, (10, 4)) for seed in range(24)]
    alone = [ask(dit, given) for given in every]
    with ThreadPoolExecutor(24) as threads:
        together = list(threads.map(lambda given: ask(dit, given), every))
    for ours, wanted in zip(together, alone, strict=True):
        assert np.allclose(ours, wanted, atol=1e-5)


def test_a_seed_and_a_position_are_another_noise_each(dit: Any) -> None:
    given = {name: np.repeat(values[:1], 3, axis=0) for name, values in rows(1).items()}
    given["SEED"] = np.array([[1], [2], [1]], np.uint64)
    given["POSITION"] = np.array([[0], [0], [1]], np.int64)
    one, other_seed, other_position = ask(dit, given)
    assert not np.allclose(one, other_seed, atol=1e-2)
    assert not np.allclose(one, other_position, atol=1e-2)
    given["SEED"][0] = given["SEED"][0] + np.uint64(2**63)
    assert not np.allclose(one, ask(dit, given)[0], atol=1e-2)


def changed(name: str, value: float, row: int = 1) -> Rows:
    given = rows(3)
    given[name][row] = value
    return given


def without(name: str) -> Rows:
    return {key: value for key, value in rows(1).items() if key != name}


WRONG = {
    "mu_too_narrow": ({**rows(2), "MU": np.zeros((2, 3), np.float32)}, "MU: has shape [2, 3], must be [2, 64]"),
    "cond_of_another_patch": (
        {**rows(1), "COND": np.zeros((1, 3, 8), np.float32)},
        "COND: has shape [1, 3, 8], must be [1, 2, 8]",
    ),
    "mu_nan": (changed("MU", np.nan), "MU: row 1 holds nan, allowed are finite numbers"),
    "mu_infinite": (changed("MU", np.inf, 2), "MU: row 2 holds inf, allowed are finite numbers"),
    "cond_nan": (changed("COND", np.nan, 0), "COND: row 0 holds nan, allowed are finite numbers"),
    "cond_infinite": (changed("COND", -np.inf), "COND: row 1 holds -inf, allowed are finite numbers"),
    "no_steps": (changed("INFERENCE_STEPS", 0), "INFERENCE_STEPS: 0 is out of range, allowed is 2 to 20"),
    "negative_steps": (changed("INFERENCE_STEPS", -1), "INFERENCE_STEPS: -1 is out of range, allowed is 2 to 20"),
    "too_many_steps": (changed("INFERENCE_STEPS", 21), "INFERENCE_STEPS: 21 is out of range, allowed is 2 to 20"),
    "cfg_too_large": (changed("CFG_VALUE", 10.5), "CFG_VALUE: 10.5 is out of range, allowed is 0 to 10"),
    "cfg_nan": (changed("CFG_VALUE", np.nan), "CFG_VALUE: nan is not a number, allowed is 0 to 10"),
    "position_negative": (
        changed("POSITION", -1),
        "POSITION: -1 is out of range, allowed is 0 to 2.14748e+09",
    ),
    **{f"{name.lower()}_missing": (without(name), f"{name}: is missing") for name in rows(1)},
    "unknown_command": (
        {"CONTROL": np.array([[b"sing"]], np.object_)},
        "CONTROL: 'sing' is not allowed, only 'ping' is",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_tensor_is_refused_by_name_with_value_and_limit(dit: Any, name: str) -> None:
    given, told = WRONG[name]
    with pytest.raises(InferenceServerException) as error:
        ask(dit, given)
    assert error.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert error.value.message() == told


@pytest.mark.parametrize("name", ["mu_nan", "no_steps", "mu_too_narrow"])
def test_a_wrong_request_harms_none_that_it_shares_a_batch_with(dit: Any, name: str) -> None:
    good = [rows(2, seed) for seed in range(12)]
    alone = [ask(dit, given) for given in good]

    def outcome(given: Rows) -> Any:
        try:
            return ask(dit, given)
        except InferenceServerException as error:
            return error.message()

    mixed = [given for one in good for given in (one, WRONG[name][0])]
    with ThreadPoolExecutor(24) as threads:
        ends = list(threads.map(outcome, mixed))
    for ours, wanted in zip(ends[::2], alone, strict=True):
        assert np.allclose(ours, wanted, atol=1e-5)
    assert ends[1::2] == [WRONG[name][1]] * len(good)
