"""Finds a family by name. Each is a package below ``triton_speech.families``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from ..request import NumberField, SpeechRequest
from ..voices.voice import Array, Voice
from .facts import TalkerFacts


class Frontend(Protocol):
    """Text side of a family: pure Python, no torch."""

    sampling: Sequence[NumberField]
    built_in_voices: Sequence[str]

    def prepare(self, request: SpeechRequest) -> Any:
        """-> an object with ``tokens`` (list of int) and ``max_frames``."""

    def check_voice(self, voice: Voice) -> None:
        """Raises ``VoiceFileError`` where this checkpoint cannot speak in a voice of the family."""

    def voice_outputs(self, voice: Voice | None) -> Mapping[str, Array]:
        """The outputs of the reference stage for a stored voice, empty ones for None."""


class Family(Protocol):
    """What a family's package offers at its top level."""

    ARCHITECTURE: str
    SAMPLING_INPUTS: Sequence[str]
    VOICE_MODES: Mapping[str, frozenset[str]]
    """What a stored voice of each mode holds: names of the reference stage's outputs."""
    FrontendParameters: type[Any]

    def load_frontend(self, folder: Path, parameters: Any) -> Frontend: ...

    def talker_facts(self, folder: Path) -> TalkerFacts: ...

    def load_talker(self, folder: Path, **options: Any) -> Any: ...

    def load_reference_encoder(self, folder: Path, **options: Any) -> Any: ...

    def load_codec(self, folder: Path, **options: Any) -> Any: ...

    def make_prompt(self, tokens: list[int], reference: Any, prompt: Any) -> Any: ...

    def make_sampling(self, seed: int, values: Mapping[str, Any]) -> Any: ...

    def priming_patches(self, prompt: Any) -> Any: ...


def load_family(name: str) -> Family:
    """The package of a family."""
    return cast("Family", importlib.import_module(f"triton_speech.families.{name}"))


def find_checkpoint(root: Path, choice: str, architecture: str) -> Path:
    """The folder of a checkpoint below ``root``.

    Args:
        root: the checkpoints folder.
        choice: name of a folder in it, or ``auto`` for the only one of this architecture.
        architecture: what ``config.json`` must say.

    Raises:
        ValueError: there is none, several for ``auto``, or one of another architecture; names what was found.
    """
    found = {folder.name: _architecture(folder) for folder in sorted(root.iterdir())} if root.is_dir() else {}
    if choice != "auto":
        if found.get(choice) is None:
            raise ValueError(f"parameter checkpoint is {choice!r}: the checkpoints folder holds {_list(found)}")
        if found[choice] != architecture:
            raise ValueError(f"parameter checkpoint is {choice!r}, a {found[choice]} model, not {architecture}")
        return root / choice
    fitting = [name for name, kind in found.items() if kind == architecture]
    if len(fitting) == 1:
        return root / fitting[0]
    if not fitting:
        raise ValueError(f"no {architecture} checkpoint in the checkpoints folder, which holds {_list(found)}")
    raise ValueError(
        f"several {architecture} checkpoints ({', '.join(fitting)}): "
        "name one in the parameter checkpoint, or serve a folder with one of them"
    )


def _architecture(folder: Path) -> str | None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(config.get("architecture", "unknown")) if isinstance(config, dict) else None


def _list(found: dict[str, str | None]) -> str:
    named = [f"{name} ({kind})" for name, kind in found.items() if kind is not None]
    return ", ".join(named) if named else "no checkpoint"
