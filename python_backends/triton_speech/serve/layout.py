"""The files a server works from: where models and checkpoints lie, and the run directory that gathers them.

A run directory holds links only (and the log): ``model_repository``, ``ensembles``, ``checkpoints``, ``voices`` and,
for the wheel's server, ``backends/python``. Stages find checkpoints and voices beside the repository that they were
loaded from.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import triton_speech
from triton_speech.families.registry import architecture_of, family_names
from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.locate import ServerInstall
from triton_speech.serve.wiring import left_out, read_pipelines

REPOSITORIES = ("model_repository", "ensembles")
PIPELINES = REPOSITORIES[1]
_PREFIX = "triton-speech-"
_LOCK = "lock"
_SHARED_MEMORY = Path("/dev/shm")


def find_models(models: Path | None = None) -> Path:
    """The folder that holds ``model_repository/`` and ``ensembles/``: ``models``, or this source checkout."""
    root = models if models is not None else Path(triton_speech.__file__).resolve().parents[2]
    missing = [name for name in REPOSITORIES if not (root / name).is_dir()]
    if missing and models is None:
        raise SpeechSetupError(
            "the model repository is not beside the installed package; name its folder with --models"
        )
    if missing:
        raise SpeechSetupError(f"--models {root} has no folder {missing[0]}/")
    if not any(list((root / name).glob("*/config.pbtxt")) for name in REPOSITORIES):
        raise SpeechSetupError(
            f"--models {root} holds no model: no folder in {' or '.join(REPOSITORIES)} has a config.pbtxt"
        )
    return root.resolve()


def find_checkpoints(checkpoints: Path | None, models: Path) -> Path:
    """A checkpoint (it has ``config.json``) or a folder of checkpoints; by default ``checkpoints/`` in ``models``."""
    folder = checkpoints if checkpoints is not None else models / "checkpoints"
    if not folder.is_dir():
        problem = "does not exist" if not folder.exists() else "is not a folder"
        raise SpeechSetupError(f"--checkpoints {folder} {problem}")
    if not is_checkpoint(folder) and not any(is_checkpoint(entry) for entry in folder.iterdir()):
        raise SpeechSetupError(
            f"--checkpoints {folder} holds no checkpoint: neither it nor a folder in it has a config.json"
        )
    return folder.resolve()


def find_voices(voices: Path | None, models: Path) -> Path:
    """The folder of stored voices; by default ``voices/`` in ``models``, which the first voice makes."""
    if voices is None:
        return models / "voices"
    if not voices.is_dir():
        problem = "does not exist" if not voices.exists() else "is not a folder"
        raise SpeechSetupError(f"--voices {voices} {problem}")
    return voices.resolve()


def is_checkpoint(folder: Path) -> bool:
    """A folder that may not be entered is none: a volume has its ``lost+found``."""
    try:
        return (folder / "config.json").is_file()
    except PermissionError:
        return False


def check_profile(profile: str, models: Path) -> None:
    """A profile exists when any stage has ``configs/<profile>.pbtxt``; the others keep their ``config.pbtxt``."""
    known = sorted({path.stem for name in REPOSITORIES for path in (models / name).glob("*/configs/*.pbtxt")})
    if profile not in known:
        raise SpeechSetupError(f"--profile {profile} is not known; known are {', '.join(known) or 'none'}")


class RunDirectory:
    """A fresh directory that lasts as long as one server, and the prefix of that server's shared memory.

    A lock, shared with the server's processes, tells a live run from the remains of a killed one.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock

    @classmethod
    def create(cls) -> RunDirectory:
        """Makes one, after removing what killed launchers left behind."""
        parent = _parent()
        sweep(parent)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Locked before it gets its name: a lock file that can be locked is always a dead one.
        lock = os.open(path / "unlocked", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (path / "unlocked").rename(path / _LOCK)
        return cls(path, lock)

    @property
    def repositories(self) -> list[Path]:
        return [self.path / name for name in REPOSITORIES]

    @property
    def backends(self) -> Path:
        return self.path / "backends"

    @property
    def shared_memory_prefix(self) -> str:
        """Unique to this run, so that whatever carries it in ``/dev/shm`` may be removed with it."""
        return f"{self.path.name}-"

    def fill(
        self,
        install: ServerInstall,
        models: Path,
        checkpoints: Path,
        voices: Path,
        pipelines: Sequence[str] = (),
    ) -> None:
        """Links the models, the checkpoints, the voices and the wheel's Python backend.

        Models of a family that has no checkpoint here are left out: they could not be loaded. Of the pipelines those
        are linked that are named, or else all that need not be named, with the models that they need.

        Raises:
            SpeechSetupError: a pipeline that is named is not there, or its family has no checkpoint.
        """
        (self.path / "voices").symlink_to(voices)
        unserved = _families_without(checkpoints)
        for pipeline in pipelines:
            if (family := _family_of(pipeline)) in unserved:
                raise SpeechSetupError(f"--pipeline {pipeline} needs a checkpoint of {family}, and there is none")
        unwanted = left_out(read_pipelines(models / PIPELINES), pipelines)
        for name in REPOSITORIES:
            (self.path / name).mkdir()
            for model in (models / name).iterdir():
                if _family_of(model.name) not in unserved and model.name not in unwanted:
                    (self.path / name / model.name).symlink_to(model)
        if is_checkpoint(checkpoints):
            (self.path / "checkpoints").mkdir()
            (self.path / "checkpoints" / checkpoints.name).symlink_to(checkpoints)
        else:
            (self.path / "checkpoints").symlink_to(checkpoints)
        if install.backend_files:
            (self.backends / "python").mkdir(parents=True)
            for file in install.backend_files:
                (self.backends / "python" / file.name).symlink_to(file)

    def remove(self) -> None:
        """Removes the directory and the run's shared memory; call it when the server's processes are gone."""
        _remove(self.path)
        os.close(self.lock)


def _families_without(checkpoints: Path) -> set[str]:
    """Families that have no checkpoint there; none where no family has one, so that errors tell what is wrong."""
    folders = [checkpoints] if is_checkpoint(checkpoints) else list(checkpoints.iterdir())
    known = set(family_names())
    found = known & {str(architecture_of(folder)) for folder in folders}
    return known - found if found else set()


def _family_of(model: str) -> str | None:
    """The family of a pipeline or stage, by its name."""
    return next((name for name in family_names() if model == name or model.startswith(f"{name}_")), None)


def sweep(parent: Path) -> None:
    """Removes run directories (and their shared memory) that no process holds any more."""
    for path in parent.glob(f"{_PREFIX}*"):
        with _dead(path) as dead:
            if dead:
                _remove(path)


@contextmanager
def _dead(path: Path) -> Iterator[bool]:
    """Whether ``path`` is a run directory of ours whose processes are all gone."""
    try:
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            yield False
            return
        lock = os.open(path / _LOCK, os.O_RDWR)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)


def _remove(path: Path) -> None:
    for region in _SHARED_MEMORY.glob(f"{path.name}-*"):
        region.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _parent() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime)
    return Path(tempfile.gettempdir())
