"""Which server is found, and what is said when it cannot run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.locate import (
    ServerInstall,
    check_numpy,
    find_server,
    libpython_directories,
    python_version,
    python_warning,
    system_install,
    wheel_install,
)


def write(path: Path, executable: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755 if executable else 0o644)
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The tree of the wheel's server, with stubs for 3.9 and 3.11."""
    root = tmp_path / "site-packages" / "pytriton" / "tritonserver"
    write(root / "bin" / "tritonserver", executable=True)
    for version in ("3.9", "3.11"):
        write(root / "python_backend_stubs" / version / "triton_python_backend_stub", executable=True)
    return root


@pytest.fixture
def libpython(tmp_path: Path) -> Path:
    return write(tmp_path / "python" / "lib" / "libpython3.11.so.1.0").parent


def test_wheel_is_assembled_from_server_stub_and_libraries(wheel: Path, libpython: Path) -> None:
    install = wheel_install(wheel, "3.11", [libpython])

    assert install.kind == "wheel"
    assert install.executable == wheel / "bin" / "tritonserver"
    assert [file.name for file in install.backend_files] == [
        "libtriton_python.so",
        "triton_python_backend_utils.py",
        "triton_python_backend_stub",
    ]
    assert install.backend_files[-1].parent.name == "3.11"
    assert install.library_path == (wheel.parents[1] / "nvidia_pytriton.libs", libpython)


def test_missing_stub_names_the_python_versions_there_are(wheel: Path, libpython: Path) -> None:
    with pytest.raises(SpeechSetupError, match=r"no stub for Python 3\.14; it has them for 3\.9, 3\.11$"):
        wheel_install(wheel, "3.14", [libpython])


def test_missing_libpython_is_named(wheel: Path, tmp_path: Path) -> None:
    write(wheel / "python_backend_stubs" / "3.99" / "triton_python_backend_stub", executable=True)

    with pytest.raises(SpeechSetupError, match=r"libpython3\.99\.so\.1\.0 was not found"):
        wheel_install(wheel, "3.99", [tmp_path])


def test_incomplete_wheel_tells_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SpeechSetupError, match=r"pip install 'triton-speech\[server\]'"):
        wheel_install(tmp_path, "3.11", [])


@pytest.mark.parametrize("version", ["2.0.0", "2.3.1", "10.0"])
def test_numpy_2_is_refused(version: str) -> None:
    with pytest.raises(SpeechSetupError, match=f"NumPy {version} corrupts tensors"):
        check_numpy(version)


def test_numpy_1_is_accepted() -> None:
    check_numpy("1.26.4")


def test_installed_server_on_path_brings_its_own_backends(tmp_path: Path) -> None:
    executable = write(tmp_path / "triton" / "bin" / "tritonserver", executable=True)
    (tmp_path / "triton" / "backends").mkdir()

    install = system_install(str(executable.parent), container=tmp_path / "none")

    assert install == ServerInstall("system", executable, backend_directory=tmp_path / "triton" / "backends")


def test_container_server_is_found_off_the_path(tmp_path: Path) -> None:
    executable = write(tmp_path / "opt" / "bin" / "tritonserver", executable=True)

    assert system_install("", container=executable.parent).executable == executable


def test_no_server_at_all_tells_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SpeechSetupError, match=r"no Triton server was found; pip install 'triton-speech\[server\]'"):
        system_install(str(tmp_path), container=tmp_path)


def test_environment_puts_this_python_first_and_keeps_the_shell() -> None:
    install = ServerInstall("wheel", Path("tritonserver"), library_path=(Path("/wheel/libs"),))

    environment = install.environment({"PATH": "/somewhere", "LD_LIBRARY_PATH": "/theirs", "HOME": "/home/me"})

    own = str(Path(sys.executable).parent)
    assert environment["PATH"].split(os.pathsep) == [own, "/somewhere", "/usr/bin", "/bin"]
    assert environment["LD_LIBRARY_PATH"] == f"/wheel/libs{os.pathsep}/theirs"
    assert environment["HOME"] == "/home/me"


def test_installed_server_keeps_the_order_of_its_path() -> None:
    install = ServerInstall("system", Path("tritonserver"))

    assert install.environment({"PATH": "/bin:/usr/bin"}) == {"PATH": "/bin:/usr/bin"}


def test_finding_a_server_never_imports_pytriton() -> None:
    find_server()

    assert "pytriton" not in sys.modules


def test_this_python_has_a_folder_for_its_library() -> None:
    assert Path(sys.base_prefix) / "lib" in libpython_directories()
    assert python_version() == ".".join(map(str, sys.version_info[:2]))


def test_a_python_that_the_wheels_stages_crash_with_is_told(wheel: Path) -> None:
    """Three of them segfaulted in one of two runs of the tests of cancellation and load."""
    assert "crash" in python_warning(wheel, (3, 12))
    assert python_warning(wheel, (3, 11)) == python_warning(wheel, (3, 10)) == ""
    assert python_warning(None, (3, 12)) == "", "a container's server has a stub of its own"
