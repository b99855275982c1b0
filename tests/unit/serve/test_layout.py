"""Where models and checkpoints are looked for, and what a run directory holds."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.layout import (
    RunDirectory,
    check_profile,
    find_checkpoints,
    find_models,
    find_voices,
    is_checkpoint,
    sweep,
)
from triton_speech.serve.locate import ServerInstall

INSTALLED = ServerInstall("system", Path("tritonserver"))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    (root / "model_repository" / "talker" / "configs").mkdir(parents=True)
    (root / "model_repository" / "talker" / "configs" / "cpu.pbtxt").touch()
    (root / "model_repository" / "talker" / "config.pbtxt").touch()
    (root / "ensembles").mkdir()
    return root


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for run directories that no other test sees."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def checkpoint(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}", encoding="utf-8")
    return path


def test_models_folder_needs_both_repositories(models: Path) -> None:
    assert find_models(models) == models
    (models / "ensembles").rmdir()

    with pytest.raises(SpeechSetupError, match=r"has no folder ensembles/$"):
        find_models(models)


def test_models_folder_without_models_is_refused(models: Path) -> None:
    (models / "model_repository" / "talker" / "config.pbtxt").unlink()

    with pytest.raises(SpeechSetupError, match="holds no model"):
        find_models(models)


def test_checkpoints_may_be_a_folder_of_them_or_one(models: Path) -> None:
    one = checkpoint(models / "checkpoints" / "tiny")

    assert find_checkpoints(None, models) == models / "checkpoints"
    assert find_checkpoints(one, models) == one


def test_missing_checkpoints_are_named(models: Path, tmp_path: Path) -> None:
    with pytest.raises(SpeechSetupError, match=r"--checkpoints .*/nowhere does not exist"):
        find_checkpoints(tmp_path / "nowhere", models)
    (tmp_path / "file").touch()
    with pytest.raises(SpeechSetupError, match=r"--checkpoints .*/file is not a folder"):
        find_checkpoints(tmp_path / "file", models)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpeechSetupError, match=r"--checkpoints .*/empty holds no checkpoint"):
        find_checkpoints(tmp_path / "empty", models)


def test_voices_lie_beside_the_checkpoints_unless_a_folder_is_named(models: Path, tmp_path: Path) -> None:
    assert find_voices(None, models) == models / "voices"
    assert find_voices(tmp_path, models) == tmp_path


def test_a_folder_of_voices_that_is_named_must_be_there(models: Path, tmp_path: Path) -> None:
    with pytest.raises(SpeechSetupError, match=r"--voices .*/nowhere does not exist"):
        find_voices(tmp_path / "nowhere", models)
    (tmp_path / "file").touch()
    with pytest.raises(SpeechSetupError, match=r"--voices .*/file is not a folder"):
        find_voices(tmp_path / "file", models)


def test_profile_must_exist_in_some_stage(models: Path) -> None:
    check_profile("cpu", models)

    with pytest.raises(SpeechSetupError, match=r"--profile gpu is not known; known are cpu$"):
        check_profile("gpu", models)


def test_run_directory_links_repositories_checkpoints_and_backend(models: Path, tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "tiny")
    stub = tmp_path / "triton_python_backend_stub"
    stub.touch()
    run = RunDirectory.create()

    run.fill(ServerInstall("wheel", Path("tritonserver"), backend_files=(stub,)), models, one, models / "voices")

    assert (run.path / "model_repository" / "talker").resolve() == models / "model_repository" / "talker"
    assert list((run.path / "ensembles").iterdir()) == []
    assert [entry.resolve() for entry in (run.path / "checkpoints").iterdir()] == [one]
    assert (run.path / "voices").resolve() == models / "voices"
    assert (run.backends / "python" / stub.name).resolve() == stub
    run.remove()


@pytest.mark.parametrize(
    ("architectures", "served"),
    [
        (["voxcpm2"], {"talker", "voxcpm2", "voxcpm2_talker"}),
        (["qwen3_tts"], {"talker", "qwen3_tts", "qwen3_tts_talker"}),
        (["voxcpm2", "unheard-of"], {"talker", "voxcpm2", "voxcpm2_talker"}),
        (["voxcpm2", "qwen3_tts"], {"talker", "voxcpm2", "voxcpm2_talker", "qwen3_tts", "qwen3_tts_talker"}),
        (["unheard-of"], {"talker", "voxcpm2", "voxcpm2_talker", "qwen3_tts", "qwen3_tts_talker"}),
    ],
)
def test_only_models_of_families_with_a_checkpoint_are_served(
    models: Path, architectures: list[str], served: set[str]
) -> None:
    """Where no checkpoint is of a known family, all are linked, so that their errors tell what is wrong with it."""
    for name in ("voxcpm2_talker", "qwen3_tts_talker"):
        (models / "model_repository" / name).mkdir()
    for name in ("voxcpm2", "qwen3_tts"):
        (models / "ensembles" / name).mkdir()
    for name in architectures:
        field = "model_type" if name == "qwen3_tts" else "architecture"
        config = checkpoint(models / "checkpoints" / f"{name}_one") / "config.json"
        config.write_text(json.dumps({field: name}), encoding="utf-8")
    for checkpoints in {models / "checkpoints", *([config.parent] if len(architectures) == 1 else [])}:
        run = RunDirectory.create()
        run.fill(INSTALLED, models, checkpoints, models / "voices")
        assert {path.name for repository in run.repositories for path in repository.iterdir()} == served
        run.remove()


def test_run_directory_links_a_folder_of_checkpoints_as_it_is(models: Path) -> None:
    checkpoint(models / "checkpoints" / "a")
    checkpoint(models / "checkpoints" / "b")
    run = RunDirectory.create()

    run.fill(INSTALLED, models, models / "checkpoints", models / "voices")

    assert (run.path / "checkpoints").resolve() == models / "checkpoints"
    assert not run.backends.exists()
    run.remove()


def test_removal_takes_its_shared_memory_and_leaves_what_it_linked(models: Path) -> None:
    one = checkpoint(models / "checkpoints" / "tiny")
    run = RunDirectory.create()
    run.fill(INSTALLED, models, one, models / "voices")
    own = Path("/dev/shm") / f"{run.shared_memory_prefix}region"
    foreign = Path("/dev/shm") / f"not-{run.shared_memory_prefix}region"
    own.touch()
    foreign.touch()
    try:
        run.remove()

        assert not run.path.exists()
        assert not own.exists()
        assert foreign.exists()
        assert (one / "config.json").exists()
    finally:
        foreign.unlink()


def test_a_new_run_removes_what_a_killed_one_left(runtime: Path) -> None:
    killed = RunDirectory.create()
    os.close(killed.lock)  # as the system does when the last process of a run ends

    living = RunDirectory.create()
    sweep(runtime)

    assert list(runtime.iterdir()) == [living.path]
    living.remove()


def test_sweep_touches_nothing_that_is_no_run_directory(runtime: Path) -> None:
    (runtime / "triton-speech-mine").mkdir()

    sweep(runtime)

    assert (runtime / "triton-speech-mine").is_dir()


def test_a_folder_that_may_not_be_entered_is_no_checkpoint_and_no_obstacle() -> None:
    """A new volume has such a one, ``lost+found``."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "voice").mkdir()
        (root / "voice" / "config.json").touch()
        (root / "lost+found").mkdir(mode=0)
        as_root = os.geteuid() == 0
        if as_root:
            os.seteuid(65534)
        try:
            assert not is_checkpoint(root / "lost+found")
            assert find_checkpoints(root, root) == root.resolve()
        finally:
            if as_root:
                os.seteuid(0)
