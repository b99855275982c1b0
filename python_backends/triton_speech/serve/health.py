"""Liveness and readiness over HTTP, for containers, Kubernetes and people."""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from triton_speech.serve.errors import SpeechSetupError

_TICK_SECONDS = 30.0
"""A launcher that has not looked at its server for so long hangs itself."""


class Health:
    """What is said about the server; written by the launcher, read by any thread.

    ``state`` is ``starting``, ``serving``, ``restarting``, ``draining`` or ``stopped``.
    """

    def __init__(self) -> None:
        self.state = "starting"
        self.heals = 0
        self.restarts = 0
        self.problems: Callable[[], Mapping[str, str]] = dict
        """What is wrong, by model."""
        self._process_runs = False
        self._ticked = time.monotonic()

    def tick(self, process_runs: bool) -> None:
        """The launcher's sign of life."""
        self._process_runs = process_runs
        self._ticked = time.monotonic()

    @property
    def is_live(self) -> bool:
        """Whether the launcher and the server's process run."""
        return self._process_runs and time.monotonic() - self._ticked < _TICK_SECONDS

    def report(self) -> dict[str, Any]:
        """All of it; ``ready`` when every model has its processes and answered its last probe."""
        live, problems = self.is_live, dict(self.problems())
        return {
            "live": live,
            "ready": live and self.state == "serving" and not problems,
            "state": self.state,
            "problems": problems,
            "heals": self.heals,
            "restarts": self.restarts,
        }


class HealthServer:
    """``GET /live`` and ``GET /ready``: 200 or 503, with the report as JSON; ``GET /metrics`` for Prometheus.

    Serves from a thread of its own.

    Raises:
        SpeechSetupError: the port is taken or not allowed.
    """

    def __init__(self, health: Health, host: str, port: int) -> None:
        class Handler(_Handler):
            told = health

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            problem = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
            raise SpeechSetupError(f"--health-port {port} {problem}") from error
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    told: Health

    def do_GET(self) -> None:
        question = self.path.partition("?")[0].strip("/")
        report = self.told.report()
        if question == "metrics":
            self._answer(200, _metrics(report), "text/plain; version=0.0.4")
        elif question in ("live", "ready"):
            self._answer(200 if report[question] else 503, json.dumps(report))
        else:
            self._answer(404, json.dumps({"error": "only /live, /ready and /metrics are here"}))

    def _answer(self, status: int, content: str, kind: str = "application/json") -> None:
        body = content.encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come all the time; they are not logged."""


def _metrics(report: Mapping[str, Any]) -> str:
    """The report in Prometheus' text format."""
    lines = []
    for name, kind, help, value in (
        ("live", "gauge", "Whether the launcher and the process of tritonserver run", report["live"]),
        ("ready", "gauge", "Whether every model is well and takes requests", report["ready"]),
        ("problems", "gauge", "Models that are not well", len(report["problems"])),
        ("heals_total", "counter", "Models that were loaded anew", report["heals"]),
        ("restarts_total", "counter", "Starts of tritonserver after the first", report["restarts"]),
    ):
        metric = f"triton_speech_launcher_{name}"
        lines += [f"# HELP {metric} {help}", f"# TYPE {metric} {kind}", f"{metric} {int(value)}"]
    return "\n".join(lines)
