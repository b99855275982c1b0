"""What the launcher knows of each model of its server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_speech.serve.backoff import Backoff
from triton_speech.serve.control import ModelControl
from triton_speech.serve.layout import PIPELINES
from triton_speech.serve.probes import Probe
from triton_speech.serve.stubs import Stub
from triton_speech.wiring import models_named, usual_models


@dataclass(eq=False)
class Model:
    """A model, read from its configuration, and how it is.

    ``steps``: the models that it is put together from, for an ensemble. An ensemble has no process and no probe.
    ``calls``: those that a front door is made of.
    ``decoupled``: its answers are pushed at whoever called it. ``problem``: the end of a sentence; empty for a healthy
    one. ``epoch`` counts its processes, so that what was asked of an earlier one is not held against the next.
    """

    name: str
    probe: Probe | None
    steps: tuple[str, ...]
    is_pipeline: bool
    decoupled: bool
    backoff: Backoff
    stubs: list[Stub] = field(default_factory=list)
    problem: str = ""
    silences: int = 0
    epoch: int = 0
    calls: tuple[str, ...] = ()

    def serves(self, stage: Model) -> bool:
        """Whether this pipeline needs the stage."""
        return stage.name in self.steps or stage.name in self.calls


def pipelines(models: Path) -> list[str]:
    """Names of the models that clients call; ``models`` holds ``model_repository/`` and ``ensembles/``."""
    return sorted(config.parent.name for config in (models / PIPELINES).glob("*/config.pbtxt"))


def read_models(control: ModelControl, entrances: Iterable[str], heal_attempts: int) -> list[Model]:
    """All models of a server that is ready.

    Raises:
        ControlError: the server does not answer.
    """
    names = set(entrances)
    found = []
    for name in control.states():
        config = control.config(name)
        ensemble = config.get("ensemble_scheduling", {}).get("step", [])
        found.append(
            Model(
                name,
                None if ensemble else Probe.of(config),
                tuple(step["model_name"] for step in ensemble),
                name in names,
                bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
                Backoff(heal_attempts),
                calls=() if ensemble or name not in names else _calls(config),
            )
        )
    return found


def _calls(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The models that a front door with this configuration is made of."""
    stages = config.get("parameters", {}).get("stages", {}).get("string_value", "")
    return models_named(stages) or usual_models(config["name"])
