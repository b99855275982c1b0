"""What a stage's time is spent on, and what is kept of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from triton_speech.families.voxcpm2.training import loop
from triton_speech.families.voxcpm2.training.clock import Clock
from triton_speech.families.voxcpm2.training.loop import compact, run_stage
from triton_speech.families.voxcpm2.training.settings import StageSettings, TrainSettings


class Counting:
    """A stage of nothing but steps; ``losses`` are those of its steps, and 1 after them."""

    def __init__(self, *losses: float) -> None:
        self.losses, self.factors = list(losses), list[float]()

    def step(self, number: int, factor: float) -> Mapping[str, Tensor]:
        self.factors.append(factor)
        return {"loss": torch.tensor(self.losses.pop(0) if self.losses else 1.0)}

    def state_dict(self) -> dict[str, Any]:
        return {"average": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def finish(self) -> None:
        pass


def saved(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "x.pt", weights_only=False)


def test_a_first_step_does_not_count_into_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may compile for longer than what is left, and the rate would not go down."""
    now = [0.0]

    class Slow(Counting):
        def step(self, number: int, factor: float) -> Mapping[str, Tensor]:
            now[0] += 1 if self.factors else 100
            return super().step(number, factor)

    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    stage = Slow()
    assert run_stage(stage, "x", StageSettings(seconds=20, warm_up=1), tmp_path, Clock())
    assert len(stage.factors) == 21
    assert stage.factors[0] == 1
    assert stage.factors[-1] < 0.2
    assert saved(tmp_path)["spent"] == 20


def test_without_time_for_a_first_step_none_is_taken_and_nothing_written(tmp_path: Path) -> None:
    stage = Counting()
    assert not run_stage(stage, "x", StageSettings(steps=3), tmp_path, Clock(60), first_seconds=120)
    assert stage.factors == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    settings = StageSettings(steps=9, save_seconds=1e-9)
    with pytest.raises(ValueError, match="loss is not finite at step 3"):
        run_stage(Counting(1.0, 1.0, float("nan")), "x", settings, tmp_path, Clock())
    assert saved(tmp_path)["number"] == 2


def test_a_new_optimiser_after_a_compact_state_warms_up_again(tmp_path: Path) -> None:
    settings = StageSettings(steps=100, warm_up=4)
    ends = iter([1.0] * 10)

    class Ten(Clock):
        def left(self) -> float:
            return next(ends, 0.0)

    run_stage(Counting(), "x", settings, tmp_path, Ten())
    compact(tmp_path, tmp_path / "small")
    ends = iter([1.0] * 2)
    carried, again = Counting(), Counting()
    run_stage(carried, "x", settings, tmp_path / "small", Ten())
    run_stage(again, "x", settings, tmp_path / "small", Clock())
    assert [*carried.factors, *again.factors[:3]] == [0.25, 0.5, 0.75, 1, 1]


def test_a_field_of_the_decoder_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({"base": ".", "decoder": {"batch": 4}}))
    decoder = TrainSettings.read(tmp_path / "settings.json").decoder
    assert (decoder.batch, decoder.learning_rate, decoder.seed, decoder.seconds) == (4, 4e-4, 2, 700)
