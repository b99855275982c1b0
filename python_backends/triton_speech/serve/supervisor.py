"""Keeps a server running: starts it, has its models watched and healed, starts it again, and lets it drain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from triton_speech.serve import connections
from triton_speech.serve.backoff import Backoff
from triton_speech.serve.control import ControlError
from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.heal import Reloader
from triton_speech.serve.health import Health
from triton_speech.serve.models import pipelines, read_models
from triton_speech.serve.server import ServerSettings, TritonServer, how_it_ended
from triton_speech.serve.ward import Ward, Watched

EXIT_GAVE_UP = 3
"""A model or the server could not be brought back: whoever runs this process should start it anew."""
_LOOK_SECONDS = 0.1
_DRAIN_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Supervision:
    """How a server is kept.

    Every model is asked something each ``probe_interval`` seconds, and is sick when it has not answered within
    ``probe_seconds``. ``heal_attempts`` in a row are made for a model, and for the server. On a stop, running streams
    have ``drain_seconds`` to come to their end; each start has ``ready_seconds``.
    """

    probe_interval: float = 5.0
    probe_seconds: float = 15.0
    heal_attempts: int = 5
    drain_seconds: float = 20.0
    ready_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("probe_interval", "probe_seconds", "ready_seconds"):
            if not getattr(self, name) > 0:
                raise SpeechSetupError(f"{_option(name)} is {getattr(self, name):g}, must be more than 0")
        for name in ("heal_attempts", "drain_seconds"):
            if getattr(self, name) < 0:
                raise SpeechSetupError(f"{_option(name)} is {getattr(self, name):g}, must be 0 or more")


class Supervisor:
    """Runs one server until it is told to stop. ``stop`` and ``kill`` may be called from a signal handler.

    ``announce`` is called once, with the first server that is ready and the seconds that it took; ``say`` with
    sentences for the operator.
    """

    def __init__(
        self,
        settings: ServerSettings,
        supervision: Supervision,
        health: Health,
        announce: Callable[[TritonServer, float], None],
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._supervision = supervision
        self._health = health
        self._announce = announce
        self._say = say
        self._server = TritonServer(settings)
        self._ward: Ward | None = None
        self._heals_before = 0
        self._asked = threading.Event()
        self._killed = False
        self._did_not_start = False

    def stop(self) -> None:
        """Asks for a graceful end."""
        self._asked.set()

    def kill(self) -> None:
        """Ends at once."""
        self._asked.set()
        self._killed = True
        self._server.kill()

    def run(self) -> int:
        """Serves. Returns 0 when it was told to stop, else ``EXIT_GAVE_UP``. Call it from the main thread.

        Raises:
            SpeechSetupError: the server did not start the first time.
        """
        try:
            self._start()
            why = self._keep()
            self._drain()
        finally:
            self._close_ward()
            self._health.state = "stopped"
            code = self._server.stop()
            self._health.tick(False)
        if why:
            self._say(f"giving up: {why}")
            return EXIT_GAVE_UP
        if code:
            # For example with requests that were lost with a stage, which it waits for in vain.
            self._say(f"the server {how_it_ended(code)}")
        return 0

    def _start(self) -> None:
        began = time.monotonic()
        self._server.start()
        if self._wait_ready():
            self._announce(self._server, time.monotonic() - began)

    def _wait_ready(self) -> bool:
        ready = self._server.wait_ready(self._supervision.ready_seconds, self._is_interrupted)
        if ready:
            try:
                self._open_ward()
            except ControlError as error:
                raise SpeechSetupError(f"the server became ready and failed: {error}") from error
            self._health.state = "serving"
        return ready

    def _is_interrupted(self) -> bool:
        self._health.tick(self._server.poll() is None)
        return self._asked.is_set()

    def _keep(self) -> str:
        """Until it is told to stop, or why it gives up."""
        backoff = Backoff(self._supervision.heal_attempts)
        while not self._is_interrupted():
            if self._ward is not None:
                self._ward.look()
                self._health.heals = self._heals_before + self._ward.heals
                if self._ward.given_up:
                    return self._ward.given_up
            if problem := self._problem():
                self._say(f"the server {problem}")
                delay = backoff.next(time.monotonic())
                if delay is None:
                    return f"the server {problem}, again and again"
                self._restart(delay)
                backoff.succeeded(time.monotonic())
            self._asked.wait(_LOOK_SECONDS)
        return ""

    def _problem(self) -> str:
        if self._did_not_start:
            return "did not start"
        code = self._server.poll()
        if code is not None:
            return how_it_ended(code)
        return "does not answer" if self._ward is not None and self._ward.server_hangs else ""

    def _restart(self, delay: float) -> None:
        """Starts it again, on the same ports; if it does not become ready, the next look finds that."""
        self._health.state = "restarting"
        self._did_not_start = False
        self._close_ward()
        self._server.kill()
        self._server.stop()
        self._health.tick(False)
        if self._asked.wait(delay):
            return
        began = time.monotonic()
        self._server = TritonServer(replace(self._settings, ports=self._server.ports))
        self._health.restarts += 1
        try:
            self._server.start()
            if self._wait_ready():
                self._say(f"the server runs again after {time.monotonic() - began:.1f} s")
        except SpeechSetupError as error:
            self._say(str(error))
            self._server.kill()
            self._did_not_start = True

    def _open_ward(self) -> None:
        supervision, server = self._supervision, self._server
        watched = Watched(server.pid, server.shared_memory_prefix or "", server.control)
        models = read_models(server.control, pipelines(self._settings.models), supervision.heal_attempts)
        ports = (server.ports.http, server.ports.grpc)
        self._ward = Ward(
            watched,
            models,
            Reloader(watched, models, ports, self._say, supervision.ready_seconds),
            self._say,
            probe_interval=supervision.probe_interval,
            probe_seconds=supervision.probe_seconds,
        )
        self._health.problems = self._ward.problems

    def _close_ward(self) -> None:
        if self._ward is not None:
            self._ward.close()
            self._heals_before += self._ward.heals
            self._ward = None

    def _drain(self) -> None:
        """Lets the streams of all pipelines end: a model that is unloaded takes no more and finishes what it has."""
        if self._killed or self._server.poll() is not None or self._health.state != "serving":
            return
        self._health.state = "draining"
        self._close_ward()
        self._turn_away()
        control, names = self._server.control, set(pipelines(self._settings.models))
        deadline = time.monotonic() + self._supervision.drain_seconds
        try:
            names &= set(control.states())
            for name in names:
                control.unload(name)
            while self._is_draining(names) and time.monotonic() < deadline:
                self._health.tick(True)
                time.sleep(_DRAIN_POLL_SECONDS)
        except ControlError as error:
            if not self._killed:
                self._say(f"stopping without draining: {error}")

    def _turn_away(self) -> None:
        """Proxies and clients try elsewhere when a connection is refused, but not when an answer is a refusal."""
        try:
            connections.refuse_new(self._server.pid, self._server.ports.grpc)
        except OSError as error:
            self._say(f"new connections are still taken while streams end: {error.strerror}")

    def _is_draining(self, names: set[str]) -> bool:
        if self._killed or self._server.poll() is not None:
            return False
        states = self._server.control.states()
        if all(states.get(name) != "UNLOADING" for name in names):
            return False
        # Streams that were lost with a stage stay for ever; without a client there is nobody to wait for.
        ports = (self._server.ports.http, self._server.ports.grpc)
        return connections.count(self._server.pid, ports) > 0


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
