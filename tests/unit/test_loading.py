"""What every family's checkpoint costs to load, beside its weights."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triton_speech.families.registry import family_names

LOADS = {
    "talker": "load_talker(folder, slots=4, device='cpu', dtype='float32', length=None)",
    "codec": "load_codec(folder, device='cpu', slots=4)",
    "reference": "load_reference_encoder(folder, device='cpu').warm_up()",
}
PROGRAM = """
import sys
from pathlib import Path
from triton_speech.families.registry import load_family
folder = Path(sys.argv[2])
load_family(sys.argv[1]).{load}
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


@pytest.fixture(scope="module", params=family_names())
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(family) / "tiny"
    importlib.import_module(f"triton_speech.families.{family}.tiny").write_tiny_checkpoint(folder)
    return folder


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_a_stage_that_loads_its_checkpoint_imported_torchs_compiler_for_a_second(
    family: str, checkpoint: Path, load: str
) -> None:
    """Arithmetic on the meta device does that. A stage that died is back a second later for it."""
    command = [sys.executable, "-c", PROGRAM.format(load=load), family, str(checkpoint)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
