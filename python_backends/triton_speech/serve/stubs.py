"""The processes in which a server runs its Python models."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")
_INSTANCE = re.compile(r"(?P<model>.+)_\d+_\d+")


@dataclass(frozen=True)
class Stub:
    """One instance of a model; ``region`` is the name of its shared memory."""

    pid: int
    model: str
    region: str

    def is_alive(self) -> bool:
        """Whether the process is there. Triton does not wait for its stubs, so a dead one remains as a zombie."""
        try:
            state = (_PROC / str(self.pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def find_stubs(server: int, prefix: str) -> list[Stub]:
    """The living stubs of a server; ``prefix`` is how the names of its shared memory begin."""
    return [stub for pid in _children(server) if (stub := _read(pid, prefix)) is not None]


def remove_region(region: str) -> bool:
    """Removes the shared memory of a dead stub unless a process has it still; whether it is gone."""
    path = _SHARED_MEMORY / region
    if path.exists() and not _is_mapped(path):
        path.unlink(missing_ok=True)
    return not path.exists()


def _children(server: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in (_PROC / str(server) / "task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text(encoding="utf-8").split())
    return found


def _read(pid: int, prefix: str) -> Stub | None:
    """None for another kind of process, and for a dead one, which has no command line any more."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", errors="replace").split("\0")
    except OSError:
        return None
    models = [match["model"] for word in words if (match := _INSTANCE.fullmatch(word)) and "/" not in word]
    regions = [word for word in words if word.startswith(prefix)]
    return Stub(pid, models[-1], regions[0]) if models and regions else None


def _is_mapped(region: Path) -> bool:
    """Whether any process maps the region. One whose maps may not be read could, so it counts."""
    for process in _PROC.glob("[0-9]*"):
        try:
            if str(region) in (process / "maps").read_text(encoding="utf-8", errors="replace"):
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            if _same_user(process):
                return True
    return False


def _same_user(process: Path) -> bool:
    try:
        return process.stat().st_uid == os.getuid()
    except OSError:
        return False
