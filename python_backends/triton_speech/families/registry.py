"""Finds a family by name. Each is a package below ``triton_speech.families``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from ..long_text import LongText, Segment
from ..request import NumberField, SpeechRequest
from ..voices.voice import Array, Voice
from .facts import TalkerFacts


class Frontend(Protocol):
    """Text side of a family: pure Python, no torch."""

    sampling: Sequence[NumberField]
    built_in_voices: Sequence[str]

    def prepare(self, request: SpeechRequest) -> Segment: ...

    def prepare_long(self, request: SpeechRequest, *, has_voice: bool) -> tuple[Segment, LongText]:
        """Of a text of any length, the first segment and what follows; ``has_voice``: a recording or stored voice."""

    def check_voice(self, voice: Voice) -> None:
        """Raises ``VoiceFileError`` where this checkpoint cannot speak in a voice of the family."""

    def voice_outputs(self, voice: Voice | None) -> Mapping[str, Array]:
        """The outputs of the reference stage for a stored voice, empty ones for None."""


class CastFrontend(Frontend, Protocol):
    """Of a family with several voices in a request."""

    def cast_outputs(self, voices: Sequence[Voice | None]) -> Mapping[str, Array]:
        """The same for all names of a request's VOICE; None for a built-in one."""


class Family(Protocol):
    """What a family's package offers at its top level."""

    ARCHITECTURE: str
    SAMPLING_INPUTS: Sequence[str]
    MOST_VOICES: int
    """In a request: names in VOICE, and recordings in REFERENCE_AUDIO. Its models' inputs are lists where it is not 1,
    its frontend is a ``CastFrontend``, and its reference encoder has ``join``."""
    WARM_UP_TOKENS: Sequence[int]
    """Of a short prompt that needs no voice."""
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


class DiffusionFamily(Family, Protocol):
    """A family whose diffusion may run in a stage of its own."""

    def load_diffusion(self, folder: Path, **options: Any) -> Any: ...


def load_family(name: str) -> Family:
    """The package of a family."""
    return cast("Family", importlib.import_module(f"triton_speech.families.{name}"))


def optional_part(family: Family, name: str, wanted_by: str) -> Any:
    """What not every family's package offers.

    Raises:
        ValueError: this one does not; says who wants it.
    """
    part = getattr(family, name, None)
    if part is None:
        raise ValueError(f"{wanted_by}, which family {family.ARCHITECTURE} has nothing for")
    return part


def load_diffusion_family(name: str) -> DiffusionFamily:
    """The package of a family, for its diffusion alone.

    Raises:
        ValueError: it has none that could run in a stage of its own.
    """
    family = load_family(name)
    if not hasattr(family, "load_diffusion"):
        raise ValueError(f"the family {name} has no diffusion that could run in a stage of its own")
    return cast("DiffusionFamily", family)


def find_checkpoint(root: Path, choice: str, architecture: str) -> Path:
    """The folder of a checkpoint below ``root``.

    Args:
        root: the checkpoints folder.
        choice: name of a folder in it, or ``auto`` for the only one of this architecture.
        architecture: what ``config.json`` must say.

    Raises:
        ValueError: there is none, several for ``auto``, or one of another architecture; names what was found.
    """
    found = {folder.name: architecture_of(folder) for folder in sorted(root.iterdir())} if root.is_dir() else {}
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


def family_names() -> list[str]:
    """Every family that is installed; each bears the name of its architecture."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py"))


def architecture_of(folder: Path) -> str | None:
    """What the ``config.json`` of a checkpoint says that it is; None where there is none to be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    # Of two kinds of published files the one has this name for it, the other that.
    return str(config.get("architecture") or config.get("model_type") or "unknown")


def _list(found: dict[str, str | None]) -> str:
    named = [f"{name} ({kind})" for name, kind in found.items() if kind is not None]
    return ", ".join(named) if named else "no checkpoint"
