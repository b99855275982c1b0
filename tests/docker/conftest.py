"""What the deployment's files are checked against: the true command line, ports and metrics."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
IMAGES = ("Dockerfile", "Dockerfile.cpu")
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002, "health": 8003, "gateway": 8080}


def tool(name: str) -> str:
    """A command that a package of the environment brought."""
    return str(Path(sys.executable).parent / name)


def known_metrics() -> set[str]:
    """Every metric that docs/metrics.md names in a table."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))


def metrics_of(expression: str) -> set[str]:
    """The metrics that a PromQL expression names; ends the test where it is none."""
    promql = pytest.importorskip("promql_parser")
    names: set[str] = set()

    def visit(node: Any) -> bool:
        if isinstance(node, promql.VectorSelector):
            names.add(node.name)
        elif isinstance(node, promql.MatrixSelector):
            names.add(node.vector_selector.name)
        return True

    text = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
    promql.walk(promql.parse(text), visit)
    return names


def parse(words: Sequence[str]) -> argparse.Namespace:
    """A command of triton-speech as its own parser takes it; ends the test where the parser refuses."""
    from triton_speech_client.cli import COMMANDS

    parser = argparse.ArgumentParser(exit_on_error=False)
    import_module(COMMANDS[words[0]].module).add_arguments(parser)
    try:
        return parser.parse_args([str(word) for word in words[1:]])
    except SystemExit as error:
        raise AssertionError(f"{words}: refused") from error


def parse_container(arguments: Sequence[str]) -> argparse.Namespace:
    """The same for the arguments of a container, which the entrypoint completes."""
    first = arguments[0] if arguments else "-"
    return parse(["serve", *arguments] if first.startswith("-") else arguments)
