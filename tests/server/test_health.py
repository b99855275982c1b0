"""What the launcher does and says when a model or the server itself cannot go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

Launching = Callable[..., AbstractContextManager[Any]]
Kill = Callable[..., None]

CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 3 } ]
"""
ECHO = """
import pathlib, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        time.sleep(1.0)
        if pathlib.Path("{broken}").exists():
            raise ValueError("the disk is full")

    def execute(self, requests):
        while pathlib.Path("{hangs}").exists():
            time.sleep(0.1)
        values = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", value)]) for value in values]
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """While this file exists, the model does not load."""
    return tmp_path / "broken"


@pytest.fixture
def hangs(tmp_path: Path) -> Path:
    """While this file exists, the model does not answer."""
    return tmp_path / "hangs"


@pytest.fixture
def models(tmp_path: Path, broken: Path, hangs: Path) -> Path:
    """A folder of models with one that has three instances."""
    root = tmp_path / "models"
    (root / "ensembles").mkdir(parents=True)
    (root / "checkpoints" / "nothing").mkdir(parents=True)
    (root / "checkpoints" / "nothing" / "config.json").write_text("{}", encoding="utf-8")
    version = root / "model_repository" / "echo" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    (version / "model.py").write_text(ECHO.format(broken=broken, hangs=hangs), encoding="utf-8")
    return root


def health(url: str, *options: str) -> tuple[int, str, str]:
    """``triton-speech health`` as a user runs it: exit code, stdout, stderr."""
    command = [Path(sys.executable).parent / "triton-speech", "health", "--url", url, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def base(launched: Any) -> str:
    return str(launched.urls["health"].removesuffix("/ready"))


def test_one_dead_process_of_several_is_noticed(launching: Launching, models: Path, kill_stage: Kill) -> None:
    with launching(models=models) as launched:
        assert health(base(launched)) == (0, "ready", "")
        kill_stage(launched, "echo")
        launched.wait_report(lambda report: not report["ready"])
        code, told, _ = health(base(launched))
        assert (code, told) == (1, "not ready: the server is serving\nmodel 'echo' has lost its process")
        assert health(base(launched), "--live")[0] == 0
        launched.wait_report(lambda report: report["ready"] and report["heals"] == 1)
        assert health(base(launched)) == (0, "ready", "")


def test_a_model_that_hangs_is_found_and_loaded_anew(launching: Launching, models: Path, hangs: Path) -> None:
    with launching("--probe-interval=0.5", "--probe-seconds=3", models=models) as launched:
        hangs.touch()
        told = launched.wait_report(lambda report: not report["ready"])
        assert told["problems"] == {"echo": "did not answer within 3 s"}
        hangs.unlink()
        launched.wait_report(lambda report: report["ready"] and report["heals"] == 1)
        assert launched.report()["restarts"] == 0


def test_a_model_that_cannot_be_loaded_again_is_given_up(
    launching: Launching, models: Path, broken: Path, kill_stage: Kill
) -> None:
    with launching("--heal-attempts=2", models=models) as launched:
        broken.touch()
        kill_stage(launched, "echo")
        told = launched.wait_report(lambda report: "could not be loaded" in report["problems"].get("echo", ""))
        assert "the disk is full" in told["problems"]["echo"]
        assert told["status"] == 503
        code, said = launched.end()
        assert code == 3
        assert said.splitlines()[-1] == "triton-speech: giving up: model 'echo' could not be healed"
        assert health(base(launched))[0] == 1


def test_a_server_that_dies_is_started_again_on_its_ports(launching: Launching, models: Path) -> None:
    with launching(models=models) as launched:
        before = launched.pid
        os.kill(before, signal.SIGKILL)
        launched.wait_report(lambda report: report["restarts"] == 1 and report["ready"])
        assert launched.pid not in (0, before)
        from tritonclient.grpc import InferenceServerClient

        with InferenceServerClient(launched.urls["grpc"]) as client:
            assert client.is_model_ready("echo")
        launched.process.terminate()
        code, said = launched.end()
        assert code == 0
        assert said.splitlines()[0] == "triton-speech: the server was ended by SIGKILL"


def test_a_server_that_hangs_is_started_again(launching: Launching, models: Path) -> None:
    with launching("--probe-interval=0.5", "--probe-seconds=2", models=models) as launched:
        before = launched.pid
        os.kill(before, signal.SIGSTOP)
        launched.wait_report(lambda report: report["restarts"] == 1 and report["ready"])
        assert launched.pid not in (0, before)


def test_a_server_that_dies_again_and_again_is_given_up(launching: Launching, models: Path, broken: Path) -> None:
    with launching("--heal-attempts=2", models=models) as launched:
        broken.touch()
        os.kill(launched.pid, signal.SIGKILL)
        code, said = launched.end()
        assert code == 3
        assert "giving up: the server did not start, again and again" in said
        assert "model 'echo' did not load: ValueError: the disk is full" in said


def test_a_server_that_starts_is_live_and_not_ready(launching: Launching, models: Path, broken: Path) -> None:
    from triton_speech.serve.ports import Ports, check_ports

    port = check_ports("127.0.0.1", Ports(0, 0, 0)).http
    with launching(f"--health-port={port}", models=models, ready=False) as launched:
        launched.urls["health"] = f"http://127.0.0.1:{port}/ready"
        states = []
        while not states or states[-1][0] != 0:
            states.append(health(base(launched)))
            time.sleep(0.1)
        assert (1, "not ready: the server is starting", "") in states


def test_nobody_at_the_health_port_is_one_sentence() -> None:
    code, said, error = health("http://127.0.0.1:9")
    assert (code, said) == (1, "")
    assert error.startswith("triton-speech: nobody answers at http://127.0.0.1:9/ready: ")


def test_a_health_port_in_use_is_one_sentence(launching: Launching, models: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with launching(f"--health-port={port}", models=models, ready=False) as launched:
            assert launched.end() == (1, f"triton-speech: --health-port {port} is already in use\n")
