"""The compose files: valid, and what they name exists."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import yaml
from tests.docker.conftest import DOCKER, PORTS, parse_container
from tests.docker.test_images import value

FILES = ("compose.yaml", "compose.gpu.yaml")
BASE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
GPU: dict[str, Any] = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text(encoding="utf-8"))
OURS = ("server", "gateway")


@pytest.mark.parametrize("file", FILES)
def test_a_compose_file_keeps_to_the_specification(file: str) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / file]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


def test_the_gpu_file_changes_services_that_exist() -> None:
    assert set(GPU["services"]) <= set(BASE["services"])
    assert {GPU["services"][name]["image"] for name in OURS} == {"triton-speech:gpu"}
    assert {BASE["services"][name]["image"] for name in OURS} == {"triton-speech:cpu"}


@pytest.mark.parametrize("compose", [BASE, GPU], ids=FILES)
def test_our_commands_are_ones_that_the_images_take(compose: dict[str, Any]) -> None:
    for name in OURS:
        if command := compose["services"][name].get("command"):
            parse_container([word.replace("${PROFILE:-low_latency}", "low_latency") for word in command])


def test_the_gateway_asks_the_server() -> None:
    gateway = parse_container(BASE["services"]["gateway"]["command"])
    assert gateway.triton == f"server:{PORTS['grpc']}"
    assert gateway.host == "0.0.0.0"
    assert BASE["services"]["gateway"]["depends_on"]["server"]["condition"] == "service_healthy"


def test_folders_recipes_and_volumes_are_there() -> None:
    for service in (*BASE["services"].values(), *GPU["services"].values()):
        if build := service.get("build"):
            assert (DOCKER / ".." / build["dockerfile"]).is_file()
        for volume in service.get("volumes", ()):
            source = volume.replace("${CHECKPOINTS:-../checkpoints}", "../checkpoints").partition(":")[0]
            assert (DOCKER / source).is_dir() if source.startswith(".") else source in BASE["volumes"]


def test_ports_are_those_of_the_images_and_open_on_loopback_alone() -> None:
    exposed = value("Dockerfile.cpu", "EXPOSE").split()
    for name, service in BASE["services"].items():
        for port in service["ports"]:
            address, outside, inside = port.split(":")
            assert address == "127.0.0.1"
            assert outside == inside
            assert inside in exposed or name in ("prometheus", "grafana")


def test_a_stop_waits_for_the_streams() -> None:
    services = BASE["services"]
    graces = {name: int(services[name]["stop_grace_period"].removesuffix("s")) for name in OURS}
    drains = {name: parse_container(services[name]["command"]).drain_seconds for name in OURS}
    assert graces["server"] > drains["server"] + 10
    assert graces["gateway"] > drains["gateway"]
