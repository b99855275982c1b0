"""Starting and stopping a real Triton server with a minimal repository."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer

READY_SECONDS = 30.0
CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
DOUBLE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        {execute}
        doubled = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() * 2 for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]) for y in doubled]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder as ``--models`` wants it, with one model that doubles its input and one checkpoint."""
    root = tmp_path / "models"
    (root / "ensembles").mkdir(parents=True)
    (root / "checkpoints" / "nothing").mkdir(parents=True)
    (root / "checkpoints" / "nothing" / "config.json").write_text("{}", encoding="utf-8")
    add_model(root, "double", "pass")
    return root


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the run directories of a test are made; all that a server leaves carries their names."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def add_model(root: Path, name: str, initialize: str, execute: str = "pass") -> None:
    version = root / "model_repository" / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    (version / "model.py").write_text(DOUBLE.format(initialize=initialize, execute=execute), encoding="utf-8")


def settings(models: Path, ports: Ports | None = None) -> ServerSettings:
    return ServerSettings(
        models=models, checkpoints=models / "checkpoints", ports=ports or Ports(0, 0, 0), drain_seconds=2
    )


def processes(mark: str) -> list[int]:
    """The living processes with ``mark`` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def nothing_is_left(runtime: Path, run_name: str) -> bool:
    """No process, no shared memory and no run directory; killed stubs take a moment to vanish."""
    return eventually(
        lambda: (
            not processes(run_name)
            and not list(Path("/dev/shm").glob(f"{run_name}*"))
            and not (runtime / run_name).exists()
        )
    )


def run_name(runtime: Path) -> str:
    (run,) = runtime.glob("triton-speech-*")
    return run.name


def number(value: int) -> grpcclient.InferInput:
    tensor = grpcclient.InferInput("X", [1], "INT32")
    tensor.set_data_from_numpy(np.array([value], np.int32))
    return tensor


def doubled(grpc_url: str, value: int) -> int:
    with grpcclient.InferenceServerClient(grpc_url) as client:
        return int(client.infer("double", [number(value)]).as_numpy("Y")[0])


def test_server_starts_answers_and_stops_without_a_trace(models: Path, runtime: Path) -> None:
    with TritonServer(settings(models)) as server:
        assert server.wait_ready(READY_SECONDS)
        assert doubled(server.grpc_url, 21) == 42
        name = run_name(runtime)
        assert list(Path("/dev/shm").glob(f"{server.shared_memory_prefix}*"))

        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 6

    assert nothing_is_left(runtime, name)


def test_a_crashed_server_leaves_no_stubs_and_no_shared_memory(models: Path, runtime: Path) -> None:
    with TritonServer(settings(models)) as server:
        server.wait_ready(READY_SECONDS)
        name = run_name(runtime)
        os.kill(server.pid, signal.SIGKILL)
        assert eventually(lambda: server.poll() == -signal.SIGKILL)

    assert nothing_is_left(runtime, name)


def test_port_in_use_is_one_sentence(models: Path, runtime: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SpeechSetupError, match=f"^--grpc-port {port} is already in use$"):
            TritonServer(settings(models, Ports(0, port, 0))).start()

    assert not list(runtime.iterdir())


def test_broken_model_is_named_with_its_own_words(models: Path, runtime: Path) -> None:
    add_model(models, "talker", """raise ValueError("parameter 'slotz' is not known; known are slots")""")

    with (
        TritonServer(settings(models)) as server,
        pytest.raises(
            SpeechSetupError, match="model 'talker' did not load: ValueError: parameter 'slotz' is not known"
        ),
    ):
        server.wait_ready(READY_SECONDS)

    assert not list(runtime.iterdir())


def test_broken_configuration_is_named(models: Path, runtime: Path) -> None:
    (models / "model_repository" / "double" / "config.pbtxt").write_text("input [", encoding="utf-8")

    with (
        TritonServer(settings(models)) as server,
        pytest.raises(SpeechSetupError, match=r"model 'double' did not load: config\.pbtxt:1:8: "),
    ):
        server.wait_ready(READY_SECONDS)


def test_a_model_that_never_loads_is_named_and_ended(models: Path, runtime: Path) -> None:
    add_model(models, "slow", "import time; time.sleep(600)")

    with TritonServer(settings(models)) as server:
        name = run_name(runtime)
        with pytest.raises(SpeechSetupError, match=r"^the server was not ready within 3 s; still loading: slow$"):
            server.wait_ready(3)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 6

    assert nothing_is_left(runtime, name)


def serve(models: Path, *options: str) -> subprocess.Popen[str]:
    """``triton-speech serve`` as a user runs it."""
    ports = [f"--{service}-port=0" for service in ("http", "grpc", "metrics", "health")]
    return subprocess.Popen(
        [Path(sys.executable).parent / "triton-speech", "serve", "--models", models, *ports, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def served(models: Path, runtime: Path) -> Iterator[subprocess.Popen[str]]:
    """A launcher that is ended with its test."""
    launcher = serve(models)
    try:
        yield launcher
    finally:
        if launcher.poll() is None:
            launcher.terminate()
        launcher.communicate(timeout=20)


def read_until_ready(launcher: subprocess.Popen[str]) -> dict[str, str]:
    """The URLs it printed, by service."""
    assert launcher.stdout is not None
    urls: dict[str, str] = {}
    for line in launcher.stdout:
        if line.startswith("ready in "):
            return urls
        service, url = line.split()
        urls[service] = url
    assert launcher.stderr is not None
    raise AssertionError(f"the launcher ended: {launcher.stderr.read()}")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_serve_announces_urls_and_ends_on_a_signal(
    served: subprocess.Popen[str], runtime: Path, sent: signal.Signals
) -> None:
    urls = read_until_ready(served)
    assert set(urls) == {"http", "grpc", "metrics", "health"}
    assert doubled(urls["grpc"], 4) == 8
    name = run_name(runtime)

    served.send_signal(sent)

    assert served.wait(10) == 0
    assert nothing_is_left(runtime, name)


def test_a_second_signal_does_not_wait_for_requests_in_flight(models: Path, runtime: Path) -> None:
    add_model(models, "slow", "pass", execute="import time; time.sleep(60)")
    launcher = serve(models)
    urls = read_until_ready(launcher)
    name = run_name(runtime)
    with grpcclient.InferenceServerClient(urls["grpc"]) as client:
        client.async_infer("slow", [number(1)], callback=lambda result, error: None)
        time.sleep(0.5)

        launcher.send_signal(signal.SIGINT)
        time.sleep(1)
        assert launcher.poll() is None
        launcher.send_signal(signal.SIGINT)

        assert launcher.wait(5) == 0
    launcher.communicate()
    assert nothing_is_left(runtime, name)


def test_a_killed_launcher_takes_its_server_along(served: subprocess.Popen[str], models: Path, runtime: Path) -> None:
    read_until_ready(served)
    name = run_name(runtime)

    served.kill()
    assert eventually(lambda: not processes(name))

    with TritonServer(settings(models)):
        assert nothing_is_left(runtime, name)


def test_serve_without_checkpoints_is_one_sentence(models: Path, runtime: Path, tmp_path: Path) -> None:
    launcher = serve(models, "--checkpoints", str(tmp_path / "nowhere"))

    _, errors = launcher.communicate(timeout=20)

    assert launcher.returncode == 1
    assert errors.splitlines() == [f"triton-speech: --checkpoints {tmp_path / 'nowhere'} does not exist"]


def test_serve_keeps_the_log_where_it_is_told(models: Path, runtime: Path, tmp_path: Path) -> None:
    launcher = serve(models, "--log-file", str(tmp_path / "server.log"))
    read_until_ready(launcher)

    launcher.terminate()
    launcher.communicate(timeout=20)

    assert "successfully loaded 'double'" in (tmp_path / "server.log").read_text(encoding="utf-8")


def test_serve_warns_when_it_is_open_to_the_network(models: Path, runtime: Path) -> None:
    launcher = serve(models, "--host", "0.0.0.0")
    read_until_ready(launcher)

    launcher.terminate()
    _, errors = launcher.communicate(timeout=20)

    assert "warning: --host 0.0.0.0 is open to the network" in errors
