"""The README's Python runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

README = Path(__file__).resolve().parents[2] / "README.md"
# What calls the gateway is run beside its documents.
GATEWAY = "127.0.0.1:8080"
BLOCKS = [
    block
    for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    if GATEWAY not in block
]


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_code_runs(block, speech_server, tmp_path):
    code = block.replace("127.0.0.1:8001", speech_server.grpc_url)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if "morning.wav" in code:
        assert soundfile.info(tmp_path / "morning.wav").duration > 0.1
    assert re.search(r"^\d+ .*(s |Hz)", done.stdout, re.MULTILINE), done.stdout
