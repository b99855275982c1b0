"""Puts a perf_analyzer that runs here into a folder: the one of the wheel ``tritonclient==2.51.0``.

    python tests/perf/get_perf_analyzer.py FOLDER

Later wheels have none, and the package ``perf-analyzer`` is empty on many systems. Two libraries that it wants come
with the server's wheel under other names. Says why where it cannot be had; Linux on x86-64 only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

WHEEL = "tritonclient==2.51.0"
MEMBER = "tritonclient-2.51.0.data/data/bin/perf_analyzer"
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
STARTER = """\
#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/perf_analyzer.bin" "$@"
"""


def main(folder: Path) -> str:
    """Empty where it is there now, else why not."""
    try:
        libraries = Path(str(metadata.distribution("nvidia-pytriton").locate_file("nvidia_pytriton.libs")))
    except metadata.PackageNotFoundError:
        return "the wheel nvidia-pytriton, whose libraries it needs, is not installed"
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    for name, pattern in LIBRARIES.items():
        found = sorted(libraries.glob(pattern))
        if not found:
            return f"the wheel nvidia-pytriton has no {pattern}"
        (folder / "lib" / name).unlink(missing_ok=True)
        (folder / "lib" / name).symlink_to(found[0])
    with tempfile.TemporaryDirectory() as download:
        # Its own dependencies, and the client that is installed, stay as they are.
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary",
            ":all:",
            WHEEL,
            "-d",
            download,
        ]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        wheels = list(Path(download).glob("*.whl"))
        if done.returncode or not wheels:
            return f"pip cannot get {WHEEL}: {done.stderr.strip()[-300:]}"
        with zipfile.ZipFile(wheels[0]) as wheel:
            if MEMBER not in wheel.namelist():
                return f"{wheels[0].name} holds no perf_analyzer"
            (folder / "perf_analyzer.bin").write_bytes(wheel.read(MEMBER))
    starter = folder / "perf_analyzer"
    starter.write_text(STARTER, encoding="ascii")
    for program in (starter, folder / "perf_analyzer.bin"):
        program.chmod(0o755)
    tried = subprocess.run([starter, "--version"], capture_output=True, text=True, check=False)
    if tried.returncode:
        starter.unlink()
        return f"it does not run here: {(tried.stderr or tried.stdout).strip()[-300:]}"
    return ""


if __name__ == "__main__":
    if why := main(Path(sys.argv[1]).resolve()):
        print(f"no perf_analyzer: {why}", file=sys.stderr)
        sys.exit(1)
