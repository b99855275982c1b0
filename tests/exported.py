"""Graphs that several folders of tests need, exported once. Tests that need none do not import torch for them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from triton_speech.families.portable import PortableGraph

STEPS = 4
PARTS = ("codec", "dit", "reference")


class Exported:
    """What the command makes of a tiny checkpoint, each part when a test first asks for it.

    Attributes:
        said: what the command said of each part.
    """

    def __init__(self, checkpoint: Path, graphs: Path) -> None:
        self.checkpoint, self._graphs = checkpoint, graphs
        self.said: dict[str, str] = {}

    def repository(self, *parts: str) -> Path:
        """The folder of the graphs of these parts, or of all."""
        from triton_speech_client.cli import main

        for part in parts or PARTS:
            if part not in self.said:
                words = ["export", part, "--onnx", str(self._graphs), "--checkpoint", str(self.checkpoint)]
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    assert main([*words, "--steps", str(STEPS)]) == 0
                self.said[part] = out.getvalue()
        return self._graphs

    def graph(self, name: str) -> PortableGraph:
        """What was exported under this name."""
        from triton_speech.families.voxcpm2.portable import GRAPHS

        return next(one for one in GRAPHS[self._part(name)](self.checkpoint, STEPS) if one.name == name)

    def path(self, name: str) -> Path:
        from triton_speech.families.onnx_session import graph_path

        return graph_path(self.repository(self._part(name)), name)

    def _part(self, name: str) -> str:
        return next(part for part in PARTS if part in name)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Exports of a tiny checkpoint."""
    from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

    checkpoint = write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")
    return Exported(checkpoint, tmp_path_factory.mktemp("onnx"))


@pytest.fixture(scope="session")
def quickstart_codec_graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The step of the quickstart voice's codec."""
    from triton_speech.export.write import write_graph
    from triton_speech.families.voxcpm2.portable import GRAPHS

    checkpoint = Path(__file__).resolve().parents[1] / "checkpoints" / "quickstart"
    if not (checkpoint / "config.json").is_file():
        pytest.skip("checkpoints/quickstart is not there")
    graphs = tmp_path_factory.mktemp("onnx")
    step = GRAPHS["codec"](checkpoint, STEPS)[0]
    write_graph(step, graphs / step.name)
    return graphs
