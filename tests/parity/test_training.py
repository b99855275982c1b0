"""The training loss and its gradients are upstream's, though utterances share rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from triton_speech.families.voxcpm2.checkpoint import load_talker
from triton_speech.families.voxcpm2.training.rows import Batch, lay_out_rows
from triton_speech.families.voxcpm2.training.talker_loss import Draws, talker_loss

DATA = Path(__file__).parent / "data"
NAMES = ("plain", "reference", "continuation")
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(DATA / "training.safetensors")


def as_batch(golden: dict[str, Tensor], shape: list[list[str]], length: int) -> tuple[Batch, Tensor, Draws]:
    """The utterances in rows as ``shape`` says."""
    order = [name for row in shape for name in row]
    patches = torch.cat([golden[f"{name}/patches"] for name in order])
    begins = dict(zip(order, [0, *torch.tensor([len(golden[f"{n}/tokens"]) for n in order]).cumsum(0)], strict=False))
    rows = []
    for row in shape:
        laid = []
        for name in row:
            audio = golden[f"{name}/is_audio"].tolist()
            begin = int(begins[name])
            where = [begin + at if heard else -1 for at, heard in enumerate(audio)]
            laid.append((golden[f"{name}/tokens"].tolist(), where, int(golden[f"{name}/made"].sum())))
        rows.append(laid)
    spare = 3
    batch = lay_out_rows(rows, length, sum(int(golden[f"{name}/made"].sum()) for name in order) + spare)

    def drawn(key: str, fill: float) -> Tensor:
        values = torch.cat([golden[f"{name}/{key}"] for name in order])
        return torch.cat((values, torch.full((spare, *values.shape[1:]), fill)))

    history = torch.zeros(len(batch.heard), *patches.shape[1:])
    return batch, patches, Draws(drawn("noise", 0.1), drawn("time", 0.5), drawn("guided", 1.0), history)


@pytest.mark.parametrize("shape", [[["plain", "reference"], ["continuation"]], [[name] for name in NAMES]])
def test_loss_and_gradients_are_upstreams(golden: dict[str, Tensor], shape: list[list[str]]) -> None:
    model = load_talker(DATA / "checkpoint", dtype=torch.float32, fused=False).requires_grad_(True)
    batch, patches, draws = as_batch(golden, shape, length=48)
    flow, stop = talker_loss(model, patches, batch, draws)
    torch.testing.assert_close(flow, golden["flow"], rtol=TOLERANCE, atol=0)
    torch.testing.assert_close(stop, golden["stop"], rtol=TOLERANCE, atol=0)
    (flow + stop).backward()
    found = {name: one.grad.norm() for name, one in model.named_parameters() if one.grad is not None}
    wanted = {name.removeprefix("gradient/"): one for name, one in golden.items() if name.startswith("gradient/")}
    assert found.keys() == wanted.keys()
    for name, norm in wanted.items():
        torch.testing.assert_close(
            found[name], norm, rtol=1e-3, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_loss_tells_a_wrong_patch(golden: dict[str, Tensor]) -> None:
    """The comparison above would not be worth much if the loss did not depend on what is heard."""
    model = load_talker(DATA / "checkpoint", dtype=torch.float32, fused=False)
    batch, patches, draws = as_batch(golden, [["reference"]], length=48)
    flow, _ = talker_loss(model, patches, batch, draws)
    patches[2] += 0.5
    changed, _ = talker_loss(model, patches, batch, draws)
    assert not torch.isclose(flow, changed, rtol=TOLERANCE)
