"""The Python and the commands of the README and of docs/gateway.md run as they stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import soundfile

ROOT = Path(__file__).resolve().parents[3]
GATEWAY = "127.0.0.1:8080"
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/gateway.md")}
PYTHON = [
    block
    for text in TEXTS.values()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if GATEWAY in block
]
CURL = [
    command.replace("\\\n", " ")
    for text in TEXTS.values()
    for command in re.findall(r"^    (curl (?:[^\n]|\\\n)*?)$(?<!\\)", text, re.MULTILINE)
    if GATEWAY in command
]
LISTENER = """
async def main():
    audio = b"".join([piece async for piece in speak(["Good ", "morning. ", "Goo", "d night."])])
    open("live.pcm", "wb").write(audio)
asyncio.run(main())
"""


def written(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix not in (".py", ".toml")]


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_the_python_runs(gateway: Any, block: str, tmp_path: Path) -> None:
    code = block.replace(GATEWAY, gateway.url.removeprefix("http://"))
    code += LISTENER if "async def speak" in code else ""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [path.stat().st_size > 1000 for path in written(tmp_path)] == [True]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not there")
@pytest.mark.parametrize("command", CURL, ids=range(len(CURL)))
def test_the_commands_run(gateway: Any, speech_server: Any, command: str, tmp_path: Path) -> None:
    sample = ROOT / "checkpoints/quickstart/samples/misc_001.wav"
    command = command.replace(GATEWAY, gateway.url.removeprefix("http://")).replace("@me.wav", f"@{sample}")
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for path in written(tmp_path):
        assert soundfile.info(path).duration > 0.1
    for voice in speech_server.voices.iterdir():
        voice.unlink()
