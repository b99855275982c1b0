"""Servers with settings of their own, and a client that sends what a well-behaved one would not."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from triton_speech.serve.layout import REPOSITORIES, find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 120.0
STREAM_SECONDS = 90.0
OUTPUTS = ("AUDIO", "SAMPLE_RATE", "CHUNK_INDEX", "FINISH_REASON")

Inputs = Mapping[str, Any]
Parameters = Mapping[str, Mapping[str, object]]

# For the servers that the suite starts: stages that each spin on all cores slow each other down tenfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@dataclass(frozen=True)
class Answer:
    """All that came back for one request: responses with data, error texts, final flags, seconds to the end."""

    responses: list[InferResult]
    errors: list[str]
    finals: int
    seconds: float

    def column(self, name: str) -> list[Any]:
        """The one value of an output in each response."""
        return [response.as_numpy(name).item() for response in self.responses]

    def samples(self, name: str = "AUDIO") -> Any:
        return np.concatenate([response.as_numpy(name) for response in self.responses])


class Caller:
    """Sends any tensors to any model, one stream a request. May be shared by threads."""

    def __init__(self, grpc_url: str) -> None:
        self._channel = grpc.insecure_channel(grpc_url, options=[("grpc.max_send_message_length", -1)])
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def open(
        self,
        model: str,
        inputs: Inputs,
        outputs: Sequence[str] = OUTPUTS,
        request_id: str = "",
        seconds: float = STREAM_SECONDS,
    ) -> Any:
        """The running call: iterate over it for the protocol's messages, ``cancel()`` it to leave."""
        return self.open_many(model, [inputs], outputs, request_id, seconds)

    def open_many(
        self,
        model: str,
        every: Sequence[Inputs],
        outputs: Sequence[str] = OUTPUTS,
        request_id: str = "",
        seconds: float = STREAM_SECONDS,
    ) -> Any:
        """The same for requests that follow each other without waiting for an answer."""
        requests = [_request(model, inputs, outputs, request_id) for inputs in every]
        return self._stub.ModelStreamInfer(iter(requests), timeout=seconds)

    def ask(self, model: str, inputs: Inputs, outputs: Sequence[str] = OUTPUTS, request_id: str = "") -> Answer:
        started = time.perf_counter()
        responses, errors, finals = [], [], 0
        for message in self.open(model, inputs, outputs, request_id):
            if message.error_message:
                errors.append(message.error_message)
            elif message.infer_response.outputs:
                responses.append(InferResult(message.infer_response))
            finals += message.infer_response.parameters["triton_final_response"].bool_param
        return Answer(responses, errors, finals, time.perf_counter() - started)

    def ask_all(self, model: str, every: Sequence[Inputs]) -> list[Answer]:
        """The answers to requests that run at once."""
        with ThreadPoolExecutor(len(every)) as threads:
            return list(threads.map(lambda inputs: self.ask(model, inputs), every))


def _request(model: str, inputs: Inputs, outputs: Sequence[str], request_id: str) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, value in inputs.items():
        array = value if isinstance(value, np.ndarray) else bytes_array(value)
        dtype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=dtype, shape=array.shape)
        content = b"".join(serialize_byte_tensor(array).flat) if dtype == "BYTES" else array.tobytes()
        request.raw_input_contents.append(content)
    for name in outputs:
        request.outputs.add(name=name)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def bytes_array(value: str | bytes) -> Any:
    """A BYTES tensor of shape [1]."""
    return np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)


@pytest.fixture(scope="session")
def kill_stage() -> Callable[..., None]:
    """Kills the process of a model's first instance, or sends it another signal."""

    def kill(server: Any, model: str, sent: signal.Signals = signal.SIGKILL) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == server.pid and any(f"{model}_0_0".encode() in word for word in words):
                    os.kill(int(path.parent.name), sent)
                    return
        raise LookupError(model)

    return kill


@pytest.fixture(params=["voxcpm2", "voxcpm2_pipeline"])
def pipeline(request: pytest.FixtureRequest) -> str:
    """Each of the pipelines in turn: what one promises the other one keeps."""
    return str(request.param)


@pytest.fixture(scope="session")
def calling() -> Callable[[str], AbstractContextManager[Caller]]:
    """Opens a caller of the server with this gRPC address."""

    @contextmanager
    def call(grpc_url: str) -> Iterator[Caller]:
        caller = Caller(grpc_url)
        try:
            yield caller
        finally:
            caller.close()

    return call


@pytest.fixture
def caller(speech_server: Any, calling: Callable[[str], AbstractContextManager[Caller]]) -> Iterator[Caller]:
    """A caller of the suite's server."""
    with calling(speech_server.grpc_url) as caller:
        yield caller


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[TritonServer]]:
    """Starts a server whose stages have other parameters than the project's files give them, other voices or instances.

    It serves the checkpoint in ``folder``, or else a tiny one. ``programs``: ``model.py`` of models with parameters.
    ``edit`` changes the folder of models before the server starts.
    """
    from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

    @contextmanager
    def serve(
        parameters: Parameters,
        folder: Path | None = None,
        voices: Path | None = None,
        instances: Mapping[str, int] | None = None,
        trace_otlp: str | None = None,
        programs: Mapping[str, str] = MappingProxyType({}),
        pipelines: tuple[str, ...] = (),
        edit: Callable[[Path], None] = lambda models: None,
        **checkpoint: Any,
    ) -> Iterator[TritonServer]:
        models = tmp_path_factory.mktemp("models")
        change_models(find_models(ROOT), models, parameters, instances or {})
        change_programs(models, programs)
        edit(models)
        folder = folder or write_tiny_checkpoint(models / "checkpoints" / "voxcpm2_tiny", **checkpoint)
        settings = ServerSettings(
            models,
            folder,
            voices,
            pipelines=pipelines,
            ports=Ports(0, 0, 0),
            drain_seconds=2,
            trace_otlp=trace_otlp,
        )
        with TritonServer(settings) as server:
            server.wait_ready(READY_SECONDS)
            yield server

    return serve


class Launched:
    """``triton-speech serve`` as a user runs it."""

    def __init__(self, models: Path, *options: str, command: Sequence[str | Path] = ("triton-speech", "serve")) -> None:
        ports = [f"--{service}-port=0" for service in ("http", "grpc", "metrics", "health")]
        words = [*command, "--models", models, *ports, *options]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        words[0] = shutil.which(words[0], path=path) or words[0]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PATH": path}
        )
        self.urls: dict[str, str] = {}

    def wait_ready(self) -> None:
        """Until it says so; then ``urls`` has them by service."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready in "):
                return
            service, url = line.split()
            self.urls[service] = url
        raise AssertionError(f"the launcher ended: {self.process.communicate()[1]}")

    @property
    def pid(self) -> int:
        """The process id of tritonserver; 0 while there is none."""
        launcher = self.process.pid
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="utf-8").split()
        return int(children[0]) if children else 0

    def metric(self, name: str, service: str = "metrics", **labels: str) -> float:
        """The sum of what ``/metrics`` of a port says about a name, of series with these labels."""
        address = self.urls[service].replace("/ready", "/metrics")
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.partition(" ")[0].partition("{")[0] == name
            and all(f'{label}="{value}"' in line for label, value in labels.items())
        )

    def report(self) -> dict[str, Any]:
        """What the health port says, whatever its status."""
        try:
            with urllib.request.urlopen(self.urls["health"], timeout=10) as answer:
                return {"status": answer.status, **json.load(answer)}
        except urllib.error.HTTPError as error:
            return {"status": error.code, **json.load(error)}

    def wait_report(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> dict[str, Any]:
        """The first report that is so."""
        deadline = time.monotonic() + seconds
        while not condition(report := self.report()):
            assert time.monotonic() < deadline, report
            time.sleep(0.05)
        return report

    def end(self) -> tuple[int, str]:
        """Waits for its end: exit code and what it said on stderr."""
        _, said = self.process.communicate(timeout=90)
        return self.process.returncode, said


@pytest.fixture(scope="session")
def launching(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[Launched]]:
    """Starts a launcher over the project's own models, of which some have other parameters, with a tiny checkpoint."""
    from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

    @contextmanager
    def launch(
        *options: str,
        models: Path | None = None,
        parameters: Parameters = MappingProxyType({}),
        programs: Mapping[str, str] = MappingProxyType({}),
        ready: bool = True,
        command: Sequence[str | Path] = ("triton-speech", "serve"),
    ) -> Iterator[Launched]:
        if models is None:
            models = tmp_path_factory.mktemp("models")
            change_models(find_models(ROOT), models, parameters)
            change_programs(models, programs)
            write_tiny_checkpoint(models / "checkpoints" / "voxcpm2_tiny")
        launched = Launched(models, *options, command=command)
        try:
            if ready:
                launched.wait_ready()
            yield launched
        finally:
            if launched.process.poll() is None:
                launched.process.terminate()
                # For the report of a test that has failed.
                sys.stderr.write(launched.process.communicate(timeout=60)[1])

    return launch


def change_models(
    source: Path, target: Path, parameters: Parameters, instances: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Links every model of ``source`` into ``target``; those with parameters get a configuration of their own.

    ``instances``: how many of a model, for models with parameters.
    """
    for repository in REPOSITORIES:
        (target / repository).mkdir()
        for model in (source / repository).iterdir():
            link = target / repository / model.name
            if model.name not in parameters:
                link.symlink_to(model)
                continue
            link.mkdir()
            (link / "1").symlink_to(model / "1")
            config = (model / "config.pbtxt").read_text(encoding="utf-8")
            config = re.sub(r"count: \d+", f"count: {instances.get(model.name, 1)}", config)
            (link / "config.pbtxt").write_text(with_parameters(config, parameters[model.name]), encoding="utf-8")


def change_programs(models: Path, programs: Mapping[str, str]) -> None:
    """Gives models that have parameters of their own another ``model.py``."""
    for model, program in programs.items():
        (version,) = models.glob(f"*/{model}/1")
        version.unlink()
        version.mkdir()
        (version / "model.py").write_text(program, encoding="utf-8")


def with_parameters(config: str, parameters: Mapping[str, object]) -> str:
    for name, value in parameters.items():
        config = re.sub(rf'parameters \{{ key: "{name}".*\n', "", config)
        config += f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'
    return config


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The refusals that took longest: nothing is asserted about them, but they should be milliseconds."""
    times = sorted(
        (seconds, report.nodeid.rpartition("::")[2])
        for report in terminalreporter.stats.get("passed", [])
        for name, seconds in getattr(report, "user_properties", [])
        if name == "answer_seconds"
    )
    if times:
        terminalreporter.section("slowest refusals")
        for seconds, test in times[-5:][::-1]:
            terminalreporter.write_line(f"{1000 * seconds:8.1f} ms  {test}")
        terminalreporter.write_line(f"{1000 * times[len(times) // 2][0]:8.1f} ms  median of {len(times)}")
