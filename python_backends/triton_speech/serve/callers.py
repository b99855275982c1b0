"""Finds the callers whose streams died with a process, and ends their connections: Triton itself never tells them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from triton_speech.serve import connections
from triton_speech.serve.control import ControlError
from triton_speech.serve.models import Model
from triton_speech.serve.ward import Watched

QUIET_SECONDS = 1.0
"""A connection with a stream that still runs was sent something within this time."""


class Callers:
    """Those of one server. ``ports`` are the ones that clients connect to."""

    def __init__(
        self, server: Watched, models: Sequence[Model], ports: Collection[int], say: Callable[[str], None]
    ) -> None:
        self._server = server
        self._models = models
        self._ports = ports
        self._say = say

    def waiting(self, entrances: Sequence[Model]) -> list[Model]:
        """Pipelines, of these that were unloaded, with requests that have not ended: they never will."""
        if not entrances:
            return []
        try:
            states = self._server.control.states()
        except ControlError as error:
            self._say(f"callers may wait for ever: {error}")
            return []
        return [model for model in entrances if states.get(model.name) == "UNLOADING"]

    def blocked_by(self, pipelines: Sequence[Model]) -> list[Model]:
        """Stages that push their answers at pipelines that have died; Triton keeps them in the next one for ever.

        A stage that has not come to its next answer yet still looks well, so all are taken that could be blocked.
        """
        dead = [model for model in pipelines if not model.steps]
        return [
            stage
            for stage in self._models
            if stage.decoupled and not stage.is_pipeline and any(pipeline.serves(stage) for pipeline in dead)
        ]

    def hang_up(self, waiting: Sequence[Model]) -> None:
        """Ends the connections that requests of these pipelines may be on."""
        sick = [model for model in self._models if model.problem]
        quiet = 0.0 if self._is_all_lost(sick) else QUIET_SECONDS
        names = ", ".join(model.name for model in waiting)
        try:
            ended = connections.hang_up(self._server.pid, self._ports, quiet)
        except OSError as error:
            self._say(f"callers of {names} may wait for ever: their connections cannot be ended: {error}")
            return
        if ended:
            self._say(f"ended {ended} connections: streams of {names} would have been silent for ever")

    def _is_all_lost(self, sick: Sequence[Model]) -> bool:
        """Whether no stream can be left that runs: all pipelines are hit, at a place that every stream still needs.

        That is a stage that makes chunks, what comes after it, and a pipeline that is a process itself.
        """
        pipelines = [model for model in self._models if model.is_pipeline and model not in sick]
        if not all(any(pipeline.serves(model) for model in sick) for pipeline in pipelines):
            return False
        late = {name for model in self._models for name in self._from_chunks_on(model)}
        return any(model.is_pipeline or model.decoupled or model.name in late for model in sick)

    def _from_chunks_on(self, ensemble: Model) -> Sequence[str]:
        """An ensemble's steps, in the order of its configuration, from the first that is decoupled."""
        decoupled = {model.name for model in self._models if model.decoupled}
        first = next((n for n, name in enumerate(ensemble.steps) if name in decoupled), len(ensemble.steps))
        return ensemble.steps[first:]
