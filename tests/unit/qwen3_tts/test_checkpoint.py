"""Checkpoints: written, read, and refused where they do not fit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from triton_speech.families.qwen3_tts import load_reference_encoder
from triton_speech.families.qwen3_tts.checkpoint import (
    CheckpointError,
    load_speaker_encoder,
    load_speech_decoder,
    load_talker,
)
from triton_speech.families.qwen3_tts.tiny import write_tiny_checkpoint

Checkpoint = Callable[[str], Path]
FILES = ("model.safetensors", "speech_tokenizer/model.safetensors", "config.json", "vocab.json", "merges.txt")


def test_a_seed_gives_the_same_bytes_and_another_gives_others(tmp_path: Path) -> None:
    one, same, other = (
        write_tiny_checkpoint(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    for file in FILES:
        assert (one / file).read_bytes() == (same / file).read_bytes(), file
    assert (one / FILES[0]).read_bytes() != (other / FILES[0]).read_bytes()


def test_weights_are_those_of_the_file(checkpoint: Checkpoint) -> None:
    folder = checkpoint("base")
    held = load_talker(folder, fused=False).state_dict()
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.startswith("talker."):
            assert torch.equal(held[name.removeprefix("talker.")], tensor), name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("talker.codec_head.weight"), "missing: talker.codec_head.weight"),
        (lambda t: t.update(extra=torch.zeros(1)), "surplus: extra"),
        (
            lambda t: t.update({"speaker_encoder.fc.bias": torch.zeros(3)}),
            r"speaker_encoder.fc.bias is \(3,\), must be \(64,\)",
        ),
    ],
)
@pytest.mark.parametrize("load", [load_talker, load_speaker_encoder])
def test_tensors_that_do_not_fit_are_named(
    checkpoint: Checkpoint, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], said: str, load: object
) -> None:
    tensors = load_file(checkpoint("base") / FILES[0])
    change(tensors)
    folder = write_tiny_checkpoint(tmp_path, head_dim=16)
    save_file(tensors, folder / FILES[0])
    with pytest.raises(CheckpointError, match=said):
        load(folder)  # type: ignore[operator]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, head_dim=16)
    (folder / FILES[1]).write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match=r"speech_tokenizer/model\.safetensors of checkpoint .* is damaged"):
        load_speech_decoder(folder)
    (folder / FILES[1]).unlink()
    with pytest.raises(FileNotFoundError, match=r"has no speech_tokenizer/model\.safetensors"):
        load_speech_decoder(folder)


def test_only_base_models_follow_recordings(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="is a voice_design model, which follows no recordings"):
        load_speaker_encoder(checkpoint("voice_design"))


def test_an_override_that_names_no_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no field talker_config\.colour"):
        write_tiny_checkpoint(tmp_path, talker_config={"colour": 3})


@pytest.mark.parametrize("samples", [1, 1919, 1920, 1921, 48_000, 50_001])
def test_a_recording_has_a_frame_for_each_begun_hop(checkpoint: Checkpoint, samples: int) -> None:
    audio = np.random.default_rng(1).normal(0, 0.1, samples).astype(np.float32)
    codes = load_reference_encoder(checkpoint("base")).codes(audio)
    assert codes.shape == (-(-samples // 1920), 16)
    assert codes.min() >= 0
    assert codes.max() < 64


def test_voices_that_differ_have_vectors_that_differ(checkpoint: Checkpoint) -> None:
    encoder = load_reference_encoder(checkpoint("base"))
    time = np.arange(24_000) / 24_000
    low, high = (np.sin(2 * np.pi * pitch * time).astype(np.float32) for pitch in (110, 900))
    assert np.abs(encoder.speaker_vector(low) - encoder.speaker_vector(high)).max() > 0.1
