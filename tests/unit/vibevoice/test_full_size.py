"""The published checkpoints' names and shapes, where they are at hand."""

import json
from pathlib import Path

import pytest

from triton_speech.families.checkpoint_tensors import check_tensors
from triton_speech.families.vibevoice.checkpoint import model_shapes
from triton_speech.families.vibevoice.config import VibeVoiceConfig

DATA = Path(__file__).parents[4] / "shared/data"


def published(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"the published names and shapes of {name} are not at hand ({DATA.name}/{name} is missing)")
    return DATA / name


@pytest.mark.parametrize("name", ["vibevoice-1.5b", "vibevoice-large"])
def test_names_and_shapes_are_the_published_ones(name: str) -> None:
    folder = published(name)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    shapes = {key: tuple(tensor["shape"]) for key, tensor in manifest.items()}
    check_tensors(model_shapes(VibeVoiceConfig.from_checkpoint(folder)), shapes, name)


@pytest.mark.parametrize(
    ("name", "tied", "kv_bytes"), [("vibevoice-1.5b", True, 28672), ("vibevoice-large", False, 57344)]
)
def test_what_is_known_of_the_published_models(name: str, tied: bool, kv_bytes: int) -> None:
    config = VibeVoiceConfig.from_checkpoint(published(name))
    assert config.is_tied == tied
    assert config.talker_facts.kv_shape.bytes_per_position(2) == kv_bytes
    assert config.frames_per_second == 7.5


def test_the_realtime_model_is_refused_by_its_kind() -> None:
    with pytest.raises(ValueError, match="model_type is 'vibevoice_streaming': Input should be 'vibevoice'"):
        VibeVoiceConfig.from_checkpoint(published("vibevoice-realtime-0.5b"))
