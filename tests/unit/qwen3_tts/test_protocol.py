"""The family offers all that engines and stages ask of one; what is missing shows here, not at a server's start."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triton_speech.families import protocol, registry
from triton_speech.families.qwen3_tts.frontend import FrontendParameters

Checkpoint = Callable[[str], Path]
FAMILY = registry.load_family("qwen3_tts")


def members(wanted: Any) -> set[str]:
    named = {*getattr(wanted, "__annotations__", {}), *vars(wanted)}
    return {name for name in named if not name.startswith("_")}


def made(folder: Path) -> dict[Any, Any]:
    """An object of the family for each protocol."""
    return {
        registry.Family: FAMILY,
        registry.Frontend: FAMILY.load_frontend(folder, FrontendParameters()),
        protocol.TalkerModel: FAMILY.load_talker(folder, slots=2, device="cpu", dtype=None, length=32),
        protocol.Codec: FAMILY.load_codec(folder, slots=2),
        protocol.Sampling: FAMILY.make_sampling(1, {}),
        protocol.Prompt: FAMILY.make_prompt(list(FAMILY.WARM_UP_TOKENS), None, None),
    }


@pytest.mark.parametrize(
    "wanted",
    [
        *(registry.Family, registry.Frontend),
        *(protocol.TalkerModel, protocol.Codec, protocol.Sampling, protocol.Prompt),
    ],
    ids=lambda wanted: wanted.__name__,
)
def test_nothing_that_is_asked_for_is_missing(checkpoint: Checkpoint, wanted: Any) -> None:
    one = made(checkpoint("base"))[wanted]
    assert members(wanted)
    assert [name for name in sorted(members(wanted)) if not hasattr(one, name)] == []
