"""Runs a stage step by step within its time, keeps its state, and goes on from it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from .clock import Clock
from .settings import StageSettings

LOG_SECONDS = 10.0
LEAST_RATE = 0.01
"""Of the learning rate, at the end."""


class Stage(Protocol):
    """What is trained."""

    def step(self, number: int, factor: float) -> Mapping[str, Tensor]:
        """One update with the learning rates times ``factor``; losses by name."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from ``state``; from the averages where that is all it has (``compact``)."""
        ...

    def finish(self) -> None:
        """What is left to do once all steps are done."""
        ...


def run_stage(
    stage: Stage, name: str, settings: StageSettings, folder: Path, clock: Clock, *, first_seconds: float = 0.0
) -> bool:
    """Trains until the stage is done, which is returned, or ``clock`` ends; the state is saved either way.

    The first step, which may compile, takes up to ``first_seconds``: with less time than that none is taken.

    The same seed gives the same steps, on however many runs they are spread; a schedule by ``seconds`` depends on how
    fast the machine is, one by ``steps`` does not.

    Raises:
        ValueError: a loss is not finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, curve = folder / f"{name}.pt", folder / f"{name}.jsonl"
    number, spent, done, warm = 0, 0.0, False, 0
    if path.is_file():
        # Written by a run of this folder.
        saved = torch.load(path, map_location="cpu", weights_only=False)
        number, spent, done = saved["number"], saved["spent"], saved["done"]
        # A new optimiser at the full rate would undo what there is.
        warm = number if saved.get("compact") else saved.get("warm", 0)
        stage.load_state_dict(saved["stage"])
    if done:
        return True

    def save() -> None:
        unfinished = path.with_suffix(".part")
        counts = {"number": number, "spent": spent, "done": done, "warm": warm}
        torch.save(counts | {"stage": stage.state_dict()}, unfinished)
        unfinished.replace(path)

    sums: dict[str, Tensor] = {}
    counted = 0
    begun = False
    last = logged = saved_at = time.monotonic()
    while clock.left() > (0.0 if begun else first_seconds) and not (
        done := _progress(settings, number, spent, to_end=True) >= 1
    ):
        torch.manual_seed(settings.seed * 1_000_003 + number)
        losses = stage.step(number, _factor(settings, number - warm, _progress(settings, number, spent)))
        sums = {key: sums.get(key, 0.0) + value.detach() for key, value in losses.items()}
        number, counted = number + 1, counted + 1
        now = time.monotonic()
        # Else a compilation would take the place of the steps that the rate goes down in.
        spent, last, begun = spent + (now - last if begun else 0.0), now, True
        is_due = now - saved_at > settings.save_seconds
        # Before each saving, for what is not finite is not to be saved.
        if is_due or now - logged > LOG_SECONDS or number == 1:
            _log(curve, name, number, spent, {key: float(value) / counted for key, value in sums.items()})
            sums, counted, logged = {}, 0, now
        if is_due:
            save()
            saved_at = last = time.monotonic()
    if not (begun or done):
        print(f"{name}: {max(0.0, clock.left()):.0f} s are too few to begin", flush=True)
        return False
    if counted:
        _log(curve, name, number, spent, {key: float(value) / counted for key, value in sums.items()})
    if done:
        stage.finish()
    save()
    return done


def compact(folder: Path, target: Path) -> None:
    """Copies the states in ``folder`` to ``target`` as averages (and judges) in bf16: a sixth to an eighth of the size.

    A stage goes on from these too, though not to the same weights: its optimiser begins anew, with a warm-up.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.pt")):
        saved = torch.load(path, map_location="cpu", weights_only=False)
        stage = {
            part: {name: value.bfloat16() for name, value in saved["stage"][part].items()}
            for part in ("average", "judges")
            if part in saved["stage"]
        }
        torch.save(saved | {"stage": stage, "compact": True}, target / path.name)


def _progress(settings: StageSettings, number: int, spent: float, *, to_end: bool = False) -> float:
    by_time = spent / settings.seconds
    if settings.steps is None:
        return by_time
    by_steps = number / settings.steps
    return max(by_time, by_steps) if to_end else by_steps


def _factor(settings: StageSettings, number: int, progress: float) -> float:
    """Warm-up, constant for half of the time, then straight down to LEAST_RATE; ``number`` is 0 for a new optimiser."""
    down = min(1.0, max(LEAST_RATE, 2 * (1 - progress)))
    return min(1.0, (number + 1) / settings.warm_up) * down


def _log(curve: Path, name: str, number: int, spent: float, losses: Mapping[str, float]) -> None:
    with curve.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": number, "seconds": round(spent, 1), **losses}) + "\n")
    shown = ", ".join(f"{key} {value:.4f}" for key, value in losses.items())
    print(f"{name}: step {number}, {spent:.0f} s, {shown}", flush=True)
    if wrong := [key for key, value in losses.items() if not math.isfinite(value)]:
        raise ValueError(f"{name}: {', '.join(wrong)} is not finite at step {number}")
