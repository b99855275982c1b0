"""Finds the Triton server: inside the ``nvidia-pytriton`` wheel, or installed as in NVIDIA's container."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from triton_speech.serve.errors import SpeechSetupError

CONTAINER_BIN = Path("/opt/tritonserver/bin")
_STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class ServerInstall:
    """A Triton server on this machine, and what its processes need to find.

    ``wheel``: the server carried by ``nvidia-pytriton``. Its Python backend has to be put together:
    ``backend_files`` are linked into a backend directory of our own.
    ``system``: a complete installation with a ``backends`` folder; ``backend_files`` is empty.
    """

    kind: Literal["wheel", "system"]
    executable: Path
    backend_files: tuple[Path, ...] = ()
    backend_directory: Path | None = None
    cache_directory: Path | None = None
    library_path: tuple[Path, ...] = ()

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """``base`` (usually ``os.environ``) with the paths that the server and its stubs search."""
        search = [entry for entry in base.get("PATH", "").split(os.pathsep) if entry]
        if self.kind == "wheel":
            # The stub takes its standard library from the first python3 on PATH.
            own = str(Path(sys.executable).parent)
            search = [own, *(entry for entry in search if entry != own)]
        # Without the shell's tools the server waits for ever at "loading".
        search += [entry for entry in ("/usr/bin", "/bin") if entry not in search]
        libraries = [str(path) for path in self.library_path]
        libraries += [entry for entry in base.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
        environment = {**base, "PATH": os.pathsep.join(search)}
        if libraries:
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
        return environment


def find_server() -> ServerInstall:
    """The wheel's server if the wheel is installed for this Python, else an installed ``tritonserver``.

    Raises:
        SpeechSetupError: there is neither, or the one found cannot run with this Python.
    """
    root = wheel_root()
    if root is not None:
        check_numpy(metadata.version("numpy"))
        return wheel_install(root, python_version(), libpython_directories())
    return system_install(os.environ.get("PATH", ""))


def python_warning(root: Path | None, version: tuple[int, ...]) -> str:
    """What speaks against serving with this Python, empty where nothing does; ``root`` is the wheel's, if it is there.

    The wheel's stub frees Python objects without the interpreter's lock, which Python forgives up to 3.11.
    """
    if root is None or version < (3, 12):
        return ""
    return "with Python 3.12 stages of nvidia-pytriton's server crash when callers leave; 3.10 and 3.11 do not"


def python_version() -> str:
    """The running Python as ``major.minor``."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def wheel_root() -> Path | None:
    """The folder ``pytriton/tritonserver`` of the installed wheel; pytriton itself is never imported."""
    try:
        distribution = metadata.distribution("nvidia-pytriton")
    except metadata.PackageNotFoundError:
        return None
    root = Path(str(distribution.locate_file("pytriton"))) / "tritonserver"
    return root if root.is_dir() else None


def check_numpy(version: str) -> None:
    """Refuses NumPy 2, with which the wheel's Python backend hands out wrong data without an error."""
    if int(version.split(".")[0]) >= 2:
        raise SpeechSetupError(
            f"NumPy {version} corrupts tensors in the server of nvidia-pytriton; pip install 'numpy<2'"
        )


def wheel_install(root: Path, version: str, libpython: list[Path]) -> ServerInstall:
    """The server below ``root``, with the stub for Python ``version`` and the folder of its libpython.

    ``libpython``: folders that may hold the shared library of Python; the stub is linked against it.
    """
    executable = root / "bin" / "tritonserver"
    stub = root / "python_backend_stubs" / version / _STUB
    backend = root / "backends" / "python"
    if not executable.is_file():
        raise SpeechSetupError(
            "the installed nvidia-pytriton holds no tritonserver; pip install 'triton-speech[server]'"
        )
    if not stub.is_file():
        known = ", ".join(sorted((path.parent.name for path in stub.parents[1].glob(f"*/{_STUB}")), key=_as_numbers))
        raise SpeechSetupError(
            f"the server of nvidia-pytriton has no stub for Python {version}; it has them for {known}"
        )
    return ServerInstall(
        kind="wheel",
        executable=executable,
        backend_files=(backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub),
        cache_directory=root / "caches",
        library_path=(root.parents[1] / "nvidia_pytriton.libs", *_find_libpython(version, libpython)),
    )


def system_install(search_path: str, container: Path = CONTAINER_BIN) -> ServerInstall:
    """The ``tritonserver`` on ``search_path`` or in ``container``, with the backends it came with."""
    found = shutil.which("tritonserver", path=os.pathsep.join([search_path, str(container)]))
    if found is None:
        raise SpeechSetupError("no Triton server was found; pip install 'triton-speech[server]'")
    executable = Path(found)
    backends = executable.resolve().parents[1] / "backends"
    return ServerInstall("system", executable, backend_directory=backends if backends.is_dir() else None)


def libpython_directories() -> list[Path]:
    """Where this Python's shared library may lie."""
    configured = sysconfig.get_config_var("LIBDIR")
    folders = [Path(str(configured))] if configured else []
    folders.append(Path(sys.base_prefix) / "lib")
    folders += [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    return folders


def _find_libpython(version: str, folders: list[Path]) -> tuple[Path, ...]:
    """The folder of the shared libpython, or nothing where the loader finds it unaided."""
    name = f"libpython{version}.so.1.0"
    for folder in folders:
        if (folder / name).is_file():
            return (folder,)
    if ctypes.util.find_library(f"python{version}"):
        return ()
    # A stub without it does not fail: the server waits for it for ever.
    raise SpeechSetupError(
        f"{name} was not found, which the server's Python backend needs; use a Python built with --enable-shared"
    )


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
