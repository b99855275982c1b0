"""docs/client.md and docs/bench.md: their Python runs, is typed, and leaves nothing public out."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import triton_speech_client
from triton_speech_client import SpeechOptions
from triton_speech_client.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "checkpoints" / "quickstart" / "samples" / "misc_001.wav"
TEXTS = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("client.md", "bench.md")}
BLOCKS = [block for text in TEXTS.values() for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
WRONG = """
from triton_speech_client import SpeechClient

client = SpeechClient()
client.synthesize("x", sed=1)
client.synthesize("x", seed="1")
client.synthesize(3)
for chunk in client.stream("x"):
    chunk.sample
"""


def check_types(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(path)]
    # A type checker does not see an editable installation of several folders by itself.
    environment = {"MYPYPATH": f"{ROOT / 'client'}:{ROOT / 'python_backends'}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_python_runs(block: str, speech_server: Any, tmp_path: Path) -> None:
    (tmp_path / "maria.wav").write_bytes(SAMPLE.read_bytes())
    program = tmp_path / "example.py"
    program.write_text(block.replace("127.0.0.1:8001", speech_server.grpc_url), encoding="utf-8")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_python_passes_a_strict_type_checker(tmp_path: Path) -> None:
    for number, block in enumerate(BLOCKS):
        (tmp_path / f"example_{number}.py").write_text(block, encoding="utf-8")
    done = check_types(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_type_checker_finds_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG, encoding="utf-8")
    lines = re.findall(r"wrong.py:(\d+): error", check_types(path).stdout)
    assert sorted(set(map(int, lines))) == [5, 6, 7, 9]


def test_everything_public_is_described() -> None:
    text = TEXTS["client.md"]
    names = set(triton_speech_client.__all__) | set(SpeechOptions.__annotations__)
    for name in triton_speech_client.__all__:
        value = getattr(triton_speech_client, name)
        if inspect.isclass(value):
            names |= {method for method in vars(value) if not method.startswith("_")}
            names |= {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize(("command", "name"), [("bench", "bench.md"), ("batch", "client.md")])
def test_the_options_that_a_document_names_exist(command: str, name: str) -> None:
    options = set(re.findall(r"--[a-z][a-z-]+", TEXTS[name]))
    shown = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from triton_speech_client.cli import main; main(sys.argv[1:])",
            command,
            "-h",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert command in COMMANDS
    others = {"--strict"}
    assert sorted(option for option in options - others if option not in shown) == []
