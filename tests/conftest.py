"""Real servers for the whole suite: one with a tiny random checkpoint, one with the quickstart checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.exported import exported, quickstart_codec_graphs

from triton_speech.serve.layout import find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer

__all__ = ["exported", "quickstart_codec_graphs"]

# A suite that a script starts in its background, or nohup, ignores these, and so would all that it starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "checkpoints" / "quickstart"
READY_SECONDS = 120.0
SERVER_FIXTURES = {"speech_server", "quickstart_server"}


@dataclass(frozen=True)
class LiveServer:
    """A ready server: ``host:port`` for gRPC, URLs for HTTP and metrics, tritonserver's process id, its voices."""

    grpc_url: str
    http_url: str
    metrics_url: str
    process: int
    voices: Path
    log_text: Callable[[], str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if SERVER_FIXTURES & fixtures or ROOT / "tests" / "server" in item.path.parents:
            item.add_marker("server")


@pytest.fixture(scope="session")
def speech_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The project's pipelines with a tiny random VoxCPM2 checkpoint, profile ``cpu``."""
    from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

    checkpoint = tmp_path_factory.mktemp("checkpoints") / "voxcpm2_tiny"
    write_tiny_checkpoint(checkpoint)
    yield from _serve(checkpoint, tmp_path_factory.mktemp("voices"))


@pytest.fixture(scope="session")
def quickstart_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The project's pipelines with the quickstart checkpoint, profile ``cpu``."""
    if not (QUICKSTART / "config.json").is_file():
        pytest.skip("checkpoints/quickstart is not there")
    yield from _serve(QUICKSTART, tmp_path_factory.mktemp("voices"))


def _serve(checkpoint: Path, voices: Path) -> Iterator[LiveServer]:
    settings = ServerSettings(
        models=find_models(ROOT),
        checkpoints=checkpoint,
        voices=voices,
        profile="cpu",
        ports=Ports(0, 0, 0),
        drain_seconds=5,
    )
    with TritonServer(settings) as server:
        server.wait_ready(READY_SECONDS)
        yield LiveServer(server.grpc_url, server.http_url, server.metrics_url, server.pid, voices, server.log_text)
