"""One Triton server process: its command line, its start, its readiness and its end."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from triton_speech.serve import startup_log
from triton_speech.serve.control import ControlError, ModelControl
from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.layout import RunDirectory, find_voices
from triton_speech.serve.locate import ServerInstall, find_server
from triton_speech.serve.ports import Ports, check_ports

_POLL_SECONDS = 0.1
_PROBE_SECONDS = 2.0
# Over what the server itself grants to requests in flight.
_STOP_MARGIN_SECONDS = 5.0
# While it loads, the server does not react to signals and has no request to finish.
_STOP_LOADING_SECONDS = 2.0
_KILL_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class ServerSettings:
    """What to serve and where.

    ``models`` holds ``model_repository/`` and ``ensembles/``; ``checkpoints`` is a checkpoint or a folder of them;
    ``voices`` is the folder of stored voices, None for the one in ``models``.
    ``pipelines``: those to serve, with the models that they need; none for all that need not be named.
    The log goes to ``log_file`` (appended), to stderr with ``verbose``, else to the run directory.
    ``drain_seconds``: how long the server may take to end its requests and models before it is killed.
    ``connection_seconds``: gRPC clients are asked to connect anew after so long; their streams end first. None: never.
    ``trace_otlp``: URL that takes OpenTelemetry's traces over HTTP, of one request in ``trace_rate``.
    """

    models: Path
    checkpoints: Path
    voices: Path | None = None
    profile: str | None = None
    pipelines: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    ports: Ports = field(default_factory=Ports)
    log_file: Path | None = None
    verbose: bool = False
    drain_seconds: int = 10
    connection_seconds: float | None = None
    trace_otlp: str | None = None
    trace_rate: int = 1


def how_it_ended(code: int) -> str:
    """An exit code as ``subprocess`` gives it, in words."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


class TritonServer:
    """A server process in a process group and a run directory of its own.

    As a context manager it starts on entry and stops on exit. Start it from a thread that outlives it: the system
    ends the server together with the thread that started it, so that no killed launcher leaves one behind.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._run: RunDirectory | None = None
        self._ports = settings.ports
        self._key = secrets.token_hex(16)
        self._log: Path | None = None
        self._log_start = 0
        self._ready = False

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of tritonserver.

        Raises:
            RuntimeError: it has not been started.
        """
        if self._process is None:
            raise RuntimeError("the server has not been started")
        return self._process.pid

    @property
    def ports(self) -> Ports:
        """The ports it listens on: after the start, those that were found where 0 was asked for."""
        return self._ports

    @property
    def control(self) -> ModelControl:
        """Loads and unloads its models; no one else can."""
        return ModelControl(self.http_url, self._key)

    @property
    def http_url(self) -> str:
        return self.url_of(self._ports.http)

    @property
    def grpc_url(self) -> str:
        """``host:port``, as gRPC clients take it."""
        return self._address(self._ports.grpc)

    @property
    def metrics_url(self) -> str:
        return f"{self.url_of(self._ports.metrics)}/metrics"

    def url_of(self, port: int) -> str:
        """The URL of another port of the same host."""
        return f"http://{self._address(port)}"

    @property
    def shared_memory_prefix(self) -> str | None:
        """How the names of this server's regions in ``/dev/shm`` begin; None while it is stopped."""
        return self._run.shared_memory_prefix if self._run else None

    def poll(self) -> int | None:
        """The server's exit code, or None while it runs or before it was started."""
        return self._process.poll() if self._process else None

    def log_text(self) -> str:
        """What the server has logged; empty with ``verbose``, and after the end unless there is a ``log_file``."""
        if self._log is None or not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", errors="replace")

    def start(self) -> None:
        """Starts the process and returns at once.

        Raises:
            SpeechSetupError: no server, or none that runs with this Python, or a port is taken.
            RuntimeError: it runs already.
        """
        if self._run is not None:
            raise RuntimeError("the server has been started already")
        settings = self._settings
        install = find_server()
        voices = find_voices(None, settings.models) if settings.voices is None else settings.voices
        self._ports = check_ports(settings.host, settings.ports)
        self._run = RunDirectory.create()
        try:
            self._run.fill(install, settings.models, settings.checkpoints, voices, settings.pipelines)
            self._process = self._spawn(install, self._run)
        except BaseException:
            self._run.remove()
            self._run = None
            raise

    def wait_ready(self, timeout: float, interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Waits until the server answers that it is ready and that every model is; False when interrupted.

        Raises:
            SpeechSetupError: the server ended, or was not ready within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while not interrupted():
            code = self.poll()
            if code is not None:
                raise SpeechSetupError(self._why_it_ended(code))
            if self._all_ready():
                self._ready = True
                return True
            if time.monotonic() >= deadline:
                raise SpeechSetupError(self._why_not_ready(timeout))
            time.sleep(_POLL_SECONDS)
        return False

    def stop(self, timeout: float | None = None) -> int | None:
        """Ends the server, kills what is left after ``timeout`` seconds, and removes all it used.

        Without a ``timeout``, requests in flight get ``drain_seconds``. Returns the exit code, None if it was
        never started. May be called again.
        """
        if self._process is not None and self._process.poll() is None:
            if timeout is None:
                draining = self._settings.drain_seconds + _STOP_MARGIN_SECONDS
                timeout = draining if self._ready else _STOP_LOADING_SECONDS
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                self._process.wait(_KILL_SECONDS)
        if self._run is not None:
            # The server may have crashed and left its stubs.
            self.kill()
            self._run.remove()
            self._run = None
        return self.poll()

    def kill(self) -> None:
        """Kills the server and its stubs at once."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _spawn(self, install: ServerInstall, run: RunDirectory) -> subprocess.Popen[bytes]:
        launcher = os.getpid()

        def die_with_launcher() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != launcher:
                os._exit(1)

        output = None if self._settings.verbose else self._open_log(run)
        try:
            return subprocess.Popen(
                self._command(install, run),
                env=install.environment({**os.environ, **self._trace_environment()}),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if output is None else output,
                stderr=None if output is None else output,
                start_new_session=True,
                pass_fds=(run.lock,),
                preexec_fn=die_with_launcher,
            )
        finally:
            if output is not None:
                os.close(output)

    def _open_log(self, run: RunDirectory) -> int:
        path = self._settings.log_file or run.path / "server.log"
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        except OSError as error:
            raise SpeechSetupError(f"--log-file {path} cannot be written: {error.strerror}") from error
        self._log = path
        self._log_start = os.fstat(descriptor).st_size
        return descriptor

    def _command(self, install: ServerInstall, run: RunDirectory) -> list[str]:
        settings, ports = self._settings, self._ports
        backends = run.backends if install.backend_files else install.backend_directory
        command = [str(install.executable), *(f"--model-repository={path}" for path in run.repositories)]
        if settings.profile is not None:
            command.append(f"--model-config-name={settings.profile}")
        if backends is not None:
            command.append(f"--backend-directory={backends}")
        if install.cache_directory is not None:
            command.append(f"--cache-directory={install.cache_directory}")
        for service, port in (("http", ports.http), ("grpc", ports.grpc), ("metrics", ports.metrics)):
            command += [f"--{service}-address={settings.host}", f"--{service}-port={port}"]
        return [
            *command,
            *self.control.options(),
            "--disable-auto-complete-config",
            f"--exit-timeout-secs={settings.drain_seconds}",
            f"--backend-config=python,shm-region-prefix-name={run.shared_memory_prefix}",
            *self._connection_options(),
            *self._trace_options(),
        ]

    def _connection_options(self) -> list[str]:
        seconds = self._settings.connection_seconds
        return [] if seconds is None else [f"--grpc-max-connection-age={round(1000 * seconds)}"]

    def _trace_environment(self) -> dict[str, str]:
        """Where the front door sends its own spans."""
        url = self._settings.trace_otlp
        return {} if url is None else {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url}

    def _trace_options(self) -> list[str]:
        settings = self._settings
        if settings.trace_otlp is None:
            return []
        options = (
            "mode=opentelemetry",
            "level=TIMESTAMPS",
            f"rate={settings.trace_rate}",
            f"opentelemetry,url={settings.trace_otlp}",
            "opentelemetry,resource=service.name=triton-speech",
        )
        return [f"--trace-config={option}" for option in options]

    def _all_ready(self) -> bool:
        try:
            states = self.control.states(_PROBE_SECONDS) if self.control.is_ready(_PROBE_SECONDS) else {}
        except ControlError:
            return False
        return bool(states) and all(state == "READY" for state in states.values())

    def _why_it_ended(self, code: int) -> str:
        why = "its log is above" if self._log is None else startup_log.failure(self.log_text())
        return f"the server {how_it_ended(code)} before it was ready: {why}"

    def _why_not_ready(self, timeout: float) -> str:
        loading = startup_log.still_loading(self.log_text())
        what = f"; still loading: {', '.join(loading)}" if loading else ""
        return f"the server was not ready within {timeout:g} s{what}"

    def _address(self, port: int) -> str:
        host = _ANY_ADDRESS.get(self._settings.host, self._settings.host)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
