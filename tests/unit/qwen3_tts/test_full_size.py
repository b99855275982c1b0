"""The published checkpoints' names and shapes, where they are at hand."""

import json
from pathlib import Path

import pytest

from triton_speech.families.checkpoint_tensors import check_tensors
from triton_speech.families.qwen3_tts.checkpoint import codec_shapes, model_shapes
from triton_speech.families.qwen3_tts.codec_config import SpeechTokenizerConfig
from triton_speech.families.qwen3_tts.config import Qwen3TTSConfig

DATA = Path(__file__).parents[4] / "shared/data"
FOLDERS = [
    f"qwen3-tts-12hz-{name}"
    for name in ("0.6b-base", "0.6b-customvoice", "1.7b-base", "1.7b-customvoice", "1.7b-voicedesign")
]


def published(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"the published names and shapes of {name} are not at hand ({DATA.name}/{name} is missing)")
    return DATA / name


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    manifest = json.loads(path.read_text(encoding="utf-8"))
    return {name: tuple(tensor["shape"]) for name, tensor in manifest.items()}


@pytest.mark.parametrize("name", FOLDERS)
def test_the_talkers_names_and_shapes_are_the_published_ones(name: str) -> None:
    folder = published(name)
    check_tensors(model_shapes(Qwen3TTSConfig.from_checkpoint(folder)), shapes(folder / "manifest.json"), name)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_speech_tokenizers_names_and_shapes_are_the_published_ones(name: str) -> None:
    folder = published(name)
    ours = codec_shapes(SpeechTokenizerConfig.from_checkpoint(folder))
    check_tensors(ours, shapes(folder / "speech_tokenizer/manifest.json"), name)


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_known_of_the_published_models(name: str) -> None:
    config = Qwen3TTSConfig.from_checkpoint(published(name))
    assert config.talker_facts.kv_shape.bytes_per_position(2) == 114_688
    assert SpeechTokenizerConfig.from_checkpoint(published(name)).decoder_config.hop == 1920
