"""Watches the models of one running server: finds those that died or hang, and has them healed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from triton_speech.serve.control import ControlError, ModelControl
from triton_speech.serve.models import Model
from triton_speech.serve.stubs import find_stubs, remove_region

_LIVE_SECONDS = 5.0


@dataclass(frozen=True)
class Case:
    """A model that is sick, since when (``time.monotonic``), and whether its processes are still there."""

    model: Model
    since: float
    hangs: bool


Wait = Callable[[float], bool]
"""Waits until a moment (``time.monotonic``) and for as long as the back-off says; False when healing has ended."""
Report = Callable[[Case, str], None]
"""Takes another case that was found, and what is wrong: the end of a sentence."""


class Healer(Protocol):
    """Brings a model back; returns what is wrong where it could not. Several threads call it, one for each model."""

    def __call__(self, case: Case, wait: Wait, report: Report) -> str: ...


@dataclass(frozen=True)
class Watched:
    """The server as the ward sees it: its process, the prefix of its shared memory, its models' control."""

    pid: int
    shared_memory_prefix: str
    control: ModelControl


class Ward:
    """One for each run of the server. Deaths are found by looking at processes, hangs by probes with a deadline.

    ``look`` is called often, from the launcher's own thread; probing and healing have threads of their own.
    ``given_up`` says, once it is not empty, that a model could not be healed; ``server_hangs`` that the server itself
    does not answer.
    """

    def __init__(
        self,
        server: Watched,
        models: Sequence[Model],
        heal: Healer,
        say: Callable[[str], None],
        *,
        probe_interval: float,
        probe_seconds: float,
    ) -> None:
        self.given_up = ""
        self.server_hangs = False
        self.heals = 0
        self._server = server
        self._models = models
        self._healer = heal
        self._say = say
        self._interval = probe_interval
        self._deadline = probe_seconds
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._regions: set[str] = set()
        self._healing = 0
        """Models that are being healed."""
        self._rounds = 0
        """Counts beginnings and ends of healing."""
        for stub in find_stubs(server.pid, server.shared_memory_prefix):
            for model in models:
                if model.name == stub.model:
                    model.stubs.append(stub)
        work = [self._watch_server]
        work += [self._prober(model) for model in models if model.probe is not None]
        for target in work:
            threading.Thread(target=target, name="ward", daemon=True).start()

    def problems(self) -> dict[str, str]:
        """What is wrong, by model."""
        return {model.name: model.problem for model in self._models if model.problem}

    def look(self) -> None:
        """Finds the models that have lost a process."""
        for model in self._models:
            if not model.problem and any(not stub.is_alive() for stub in model.stubs):
                self._report(Case(model, time.monotonic(), hangs=False), "has lost its process")

    def close(self) -> None:
        """No more healing from here on."""
        self._closed.set()

    def _report(self, case: Case, problem: str) -> None:
        with self._lock:
            if case.model.problem or self._closed.is_set():
                return
            case.model.problem = problem
            self._healing += 1
            self._rounds += 1
        self._say(f"model '{case.model.name}' {problem}")
        # Each by itself: what takes long for one must not keep the callers of another waiting.
        threading.Thread(target=self._heal, args=(case,), name="heal", daemon=True).start()

    def _prober(self, model: Model) -> Callable[[], None]:
        def probe() -> None:
            while not self._closed.wait(self._interval):
                self._probe(model)

        return probe

    def _probe(self, model: Model) -> None:
        if model.problem or model.probe is None:
            return
        epoch, rounds = model.epoch, self._rounds
        problem = model.probe.ask(self._server.control.url, self._deadline)
        if not problem:
            model.silences = 0
            return
        if epoch != model.epoch or not self._is_undisturbed(rounds) or not self._server.control.is_live(_LIVE_SECONDS):
            return
        # A pipeline is as silent as the stage that it waits for, which is found out at the same time.
        model.silences = 0 if any(other.problem for other in self._models) else model.silences + 1
        if model.silences >= (2 if model.is_pipeline else 1):
            self._report(Case(model, time.monotonic(), hangs=True), problem)

    def _is_undisturbed(self, rounds: int) -> bool:
        """Whether no model was loaded since: a load keeps some connections waiting, and their silence means nothing."""
        with self._lock:
            return rounds == self._rounds and not self._healing

    def _watch_server(self) -> None:
        while not self._closed.wait(self._interval):
            with self._lock:
                regions = set(self._regions)
            gone = {region for region in regions if remove_region(region)}
            with self._lock:
                self._regions -= gone
            rounds = self._rounds
            if self._server.control.is_live(self._deadline) or self._closed.is_set():
                continue
            self.server_hangs = self._is_undisturbed(rounds)

    def _heal(self, case: Case) -> None:
        try:
            while problem := self._attempt(case):
                case = Case(case.model, time.monotonic(), hangs=False)
                case.model.problem = problem
                self._say(f"model '{case.model.name}' {problem}")
        finally:
            with self._lock:
                self._healing -= 1
                self._rounds += 1

    def _attempt(self, case: Case) -> str:
        """What is wrong with the model after one attempt; empty when it is well, or nothing more is to be done."""
        model, now = case.model, time.monotonic()
        delay = model.backoff.next(now)
        if delay is None:
            model.problem = "could not be healed"
            self.given_up = f"model '{model.name}' could not be healed"
            return ""
        with self._lock:
            self._regions |= {stub.region for stub in model.stubs if not stub.is_alive()}

        def wait(moment: float) -> bool:
            return not self._closed.wait(max(0.0, max(moment, now + delay) - time.monotonic()))

        try:
            problem = self._healer(case, wait, self._report)
        except ControlError as error:
            problem = str(error)
        if self._closed.is_set():
            return ""
        if problem:
            return f"could not be loaded: {problem}"
        model.backoff.succeeded(time.monotonic())
        with self._lock:
            self.heals += 1
        return ""
