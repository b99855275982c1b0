"""Heals models by unloading and loading them, and lets no caller wait for what will never come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

from triton_speech.serve.callers import Callers
from triton_speech.serve.control import ControlError
from triton_speech.serve.models import Model
from triton_speech.serve.stubs import Stub, find_stubs
from triton_speech.serve.ward import Case, Report, Wait, Watched

HEARD_SECONDS = 0.7
"""A sick model stays unloaded for so long at least: who waits for it asks each half second whether it lives."""
HANG_UP_SECONDS = 1.3
"""Then whoever has not been told otherwise is."""


class Reloader:
    """Callable as a ward's healer, by several threads at once: one for each model that is sick.

    ``ports`` are those that clients connect to; ``load_seconds`` limits one load.
    """

    def __init__(
        self,
        server: Watched,
        models: Sequence[Model],
        ports: Collection[int],
        say: Callable[[str], None],
        load_seconds: float,
    ) -> None:
        self._server = server
        self._control = server.control
        self._models = models
        self._callers = Callers(server, models, ports, say)
        self._say = say
        self._load_seconds = load_seconds
        self._away: set[Model] = set()
        self._lock = threading.Lock()
        """Of ``_away``, and of what is unloaded and loaded by it: Triton loads an ensemble's steps along with it."""

    def __call__(self, case: Case, wait: Wait, report: Report) -> str:
        model = case.model
        before = {stub.pid for stub in self._stubs(model)}
        if case.hangs:
            # Triton would wait for a process that hangs, and a GPU's memory stay taken.
            for stub in model.stubs:
                stub.kill()
        ensembles = [other for other in self._models if model.name in other.steps]
        self._take_away(model, ensembles)
        entrances = [*ensembles, model] if model.is_pipeline else ensembles
        # Beside all else, for loading takes long. A pipeline that is loaded anew no longer shows who waits for it.
        telling = threading.Thread(target=self._tell_callers, args=(case.since, entrances, report), name="telling")
        telling.start()
        if model.is_pipeline:
            telling.join()
        if not wait(case.since + HEARD_SECONDS):
            return ""
        problem = "" if self._lacks_steps(model) else self._load(model)
        if problem:
            return problem
        telling.join()
        self._bring_back(model, ensembles, report)
        self._take_stock(model, before)
        self._say(f"'{model.name}' is back after {time.monotonic() - case.since:.1f} s")
        return ""

    def _take_away(self, model: Model, ensembles: Sequence[Model]) -> None:
        with self._lock:
            self._away.add(model)
            for one in (*ensembles, model):
                self._control.unload(one.name)

    def _tell_callers(self, since: float, entrances: Sequence[Model], report: Report) -> None:
        time.sleep(max(0.0, since + HANG_UP_SECONDS - time.monotonic()))
        waiting = self._callers.waiting(entrances)
        if not waiting:
            return
        for stage in self._callers.blocked_by(waiting):
            report(Case(stage, since, hangs=True), "waits for a pipeline that has died")
        self._callers.hang_up(waiting)

    def _lacks_steps(self, ensemble: Model) -> bool:
        """Whether it is loaded by the last of its steps that comes back."""
        with self._lock:
            return any(step.name in ensemble.steps for step in self._away)

    def _load(self, model: Model) -> str:
        try:
            self._control.load(model.name, self._load_seconds)
        except ControlError as error:
            return str(error)
        return ""

    def _bring_back(self, model: Model, ensembles: Sequence[Model], report: Report) -> None:
        with self._lock:
            self._away.discard(model)
            for ensemble in ensembles:
                if any(step.name in ensemble.steps for step in self._away):
                    continue
                if problem := self._load(ensemble):
                    report(Case(ensemble, time.monotonic(), hangs=False), f"could not be loaded: {problem}")

    def _stubs(self, model: Model) -> Sequence[Stub]:
        stubs = find_stubs(self._server.pid, self._server.shared_memory_prefix)
        return [stub for stub in stubs if stub.model == model.name]

    def _take_stock(self, model: Model, before: Collection[int]) -> None:
        """The processes of a model that is back; earlier ones end by themselves with their last request."""
        model.stubs = [stub for stub in self._stubs(model) if stub.pid not in before]
        model.epoch += 1
        model.silences = 0
        model.problem = ""
