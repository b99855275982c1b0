"""``triton-speech serve`` as a process of its own, for what measures or soaks the server as people run it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triton_speech.serve.stubs import find_stubs
from triton_speech_client import wire

PREFIX = "triton-speech-"
STOP_SECONDS = 120.0
OPTIONS = (*wire.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
"""Of a gRPC channel. Without the last one the channels of one process share a connection."""


class Launcher:
    """Starts it, on free ports, and returns when it is ready; ``urls`` has http, grpc, metrics and health.

    Raises:
        SystemExit: it did not start.
    """

    def __init__(self, checkpoint: Path, voices: Path, log: Path, options: Sequence[str | Path] = ()) -> None:
        known = ["--checkpoints", checkpoint, "--voices", voices, "--log-file", log]
        ports = [f"--{service}-port=0" for service in ("http", "grpc", "metrics", "health")]
        # Kills come faster than any fault would.
        command = [Path(sys.executable).parent / "triton-speech", "serve", *known, *ports, "--heal-attempts=1000"]
        self._process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=log.open("a"), text=True)
        self.urls: dict[str, str] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ready in"):
                return
            service, url = line.split()
            self.urls[service] = url
        raise SystemExit(f"the launcher did not start; see {log}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def server(self) -> int:
        """The process id of tritonserver, 0 while there is none."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="utf-8")
        return next((int(pid) for pid in children.split()), 0)

    def shared_memory_prefix(self) -> str:
        """How the names of the server's regions in ``/dev/shm`` begin."""
        stub, *_ = find_stubs(self.server(), PREFIX)
        found = re.match(rf"{PREFIX}\w+-", stub.region)
        assert found is not None
        return found[0]

    def report(self) -> dict[str, Any]:
        """What it says of its health."""
        try:
            with urllib.request.urlopen(self.urls["health"], timeout=5) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            return dict(json.load(error))

    def kill(self, model: str) -> None:
        """Kills the process of a model's instance."""
        next(stub for stub in find_stubs(self.server(), PREFIX) if stub.model == model).kill()

    def stop(self) -> int:
        """Ends it gracefully, and returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def end(self) -> None:
        """Ends it if it still runs, whatever has happened."""
        if self._process.poll() is None:
            self.stop()
