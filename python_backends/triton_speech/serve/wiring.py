"""Which models each pipeline needs, read from the repository's configurations, and which are served."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triton_speech.serve.errors import SpeechSetupError
from triton_speech.wiring import models_named, usual_models

_STEP = re.compile(r'^[^#\n]*\bmodel_name\s*:\s*"([^"]+)"', re.MULTILINE)
_PARAMETER = r'^[^#\n]*\bkey\s*:\s*"%s"\s*,?\s*value\s*:?\s*\{\s*string_value\s*:\s*"([^"]*)"'


@dataclass(frozen=True)
class Pipeline:
    """A model that clients call. ``models``: those that it is made of. ``on_request``: served only where named."""

    name: str
    models: frozenset[str]
    on_request: bool


def read_pipelines(folder: Path) -> dict[str, Pipeline]:
    """The pipelines of a repository (``ensembles/``), by name: ensembles of steps, and front doors."""
    found = {}
    for path in sorted(folder.glob("*/config.pbtxt")):
        name, text = path.parent.name, path.read_text(encoding="utf-8")
        models = _STEP.findall(text) or models_named(_parameter(text, "stages")) or usual_models(name)
        found[name] = Pipeline(name, frozenset(models), _parameter(text, "on_request") == "true")
    return found


def left_out(pipelines: dict[str, Pipeline], wanted: Sequence[str]) -> set[str]:
    """Pipelines that are not served, and models that only these need.

    Args:
        pipelines: all that there are.
        wanted: those that were asked for; none for all that need not be asked for.

    Raises:
        SpeechSetupError: one that was asked for is not there.
    """
    for name in wanted:
        if name not in pipelines:
            raise SpeechSetupError(f"--pipeline {name} is not known; known are {', '.join(pipelines) or 'none'}")
    served = set(wanted) or {name for name, one in pipelines.items() if not one.on_request}
    needed = {model for name in served for model in pipelines[name].models}
    all_models = {model for one in pipelines.values() for model in one.models}
    return (pipelines.keys() - served) | (all_models - needed)


def _parameter(text: str, name: str) -> str:
    found = re.search(_PARAMETER % name, text, re.MULTILINE)
    return found[1] if found else ""
