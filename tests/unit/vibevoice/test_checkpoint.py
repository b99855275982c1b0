"""Checkpoints that fit, and what is said of those that do not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from triton_speech.families.checkpoint_tensors import CheckpointError
from triton_speech.families.vibevoice.checkpoint import load_listener, load_speaker
from triton_speech.families.vibevoice.config import VibeVoiceConfig
from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint
from triton_speech.families.vibevoice.tokenizer import Tokenizer, read_controls

Q_BIAS = "model.language_model.layers.1.self_attn.q_proj.bias"


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refield(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(fields)
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")


def test_the_same_seed_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    again = write_tiny_checkpoint(tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    other = write_tiny_checkpoint(tmp_path / "other", seed=1)
    assert (other / "model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()


def test_shards_are_read_as_one_file_is(folder: Path, copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    names = sorted(tensors)
    where = {name: f"model-0000{index % 3 + 1}-of-00003.safetensors" for index, name in enumerate(names)}
    for shard in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == shard}, copy / shard)
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}), encoding="utf-8")
    ours, theirs = (load_speaker(path, fused=False).state_dict() for path in (copy, folder))
    assert all(torch.equal(ours[name], theirs[name]) for name in names if not ours[name].is_meta)
    (copy / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"'copy' has no model-00002-of-00003\.safetensors"):
        load_speaker(copy)


def test_tied_weights_are_one_tensor_and_untied_ones_are_two(folder: Path, tmp_path: Path) -> None:
    tied = load_speaker(folder)
    assert tied.head_weight is tied.model.language_model.embed_tokens.weight
    untied = load_speaker(write_tiny_checkpoint(tmp_path / "untied", tie_word_embeddings=False))
    assert not torch.equal(untied.head_weight, untied.model.language_model.embed_tokens.weight)


def test_each_part_is_loaded_without_the_others(folder: Path) -> None:
    listener = load_listener(folder).model
    assert listener.language_model.embed_tokens.weight.is_meta
    assert not next(listener.acoustic_tokenizer.encoder.parameters()).is_meta
    assert next(load_speaker(folder).model.acoustic_tokenizer.encoder.parameters()).is_meta


def test_speech_tokenizers_stay_exact_in_a_half_precision_model(folder: Path) -> None:
    model = load_speaker(folder, dtype=torch.bfloat16).model
    assert model.language_model.norm.weight.dtype == model.prediction_head.cond_proj.weight.dtype == torch.bfloat16
    assert next(model.acoustic_tokenizer.decoder.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensors: tensors.pop(Q_BIAS), f"missing: {Q_BIAS}"),
        (lambda tensors: tensors.update({"model.x": torch.zeros(1)}), "surplus: model.x"),
        (
            lambda tensors: tensors.update({Q_BIAS: torch.zeros(3)}),
            rf"wrong shape: {Q_BIAS} is \(3,\), must be \(64,\)",
        ),
        (
            lambda tensors: tensors.update({"model.speech_scaling_factor": torch.tensor(float("nan"))}),
            "model.speech_scaling_factor is nan, must be finite",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(copy: Path, change: Any, told: str) -> None:
    rewrite(copy, change)
    with pytest.raises(CheckpointError, match=told):
        load_speaker(copy)


def test_a_damaged_file_is_told(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\0" * 99)
    with pytest.raises(CheckpointError, match="the weights of checkpoint 'copy' are damaged"):
        load_speaker(copy)


@pytest.mark.parametrize(
    ("section", "field", "value", "told"),
    [
        (
            "decoder_config",
            "num_key_value_heads",
            3,
            r"num_attention_heads is 4, not a multiple of num_key_value_heads \(3\)",
        ),
        ("decoder_config", "rope_scaling", {"type": "yarn"}, "decoder_config.rope_scaling"),
        ("decoder_config", "use_sliding_window", True, "decoder_config.use_sliding_window is True"),
        ("diffusion_head_config", "prediction_type", "epsilon", "prediction_type is 'epsilon'"),
        ("diffusion_head_config", "latent_size", 32, "latent_size is 32, must be 64"),
        ("acoustic_tokenizer_config", "encoder_depths", "1-1", r"encoder_depths has 2 entries, must have 7"),
        (
            "semantic_tokenizer_config",
            "encoder_ratios",
            [8, 5, 5, 4, 2, 4],
            "encoder_ratios multiplied is 6400, must be 3200",
        ),
    ],
)
def test_a_configuration_that_is_not_supported_is_named(
    copy: Path, section: str, field: str, value: Any, told: str
) -> None:
    refield(copy, lambda fields: fields[section].update({field: value}))
    with pytest.raises(ValueError, match=told):
        VibeVoiceConfig.from_checkpoint(copy)


def test_more_positions_than_the_model_has_are_refused(folder: Path) -> None:
    with pytest.raises(
        ValueError, match=r"length is 16385, the model of checkpoint 'vibevoice' has positions for 1 to 16384"
    ):
        load_speaker(folder, length=16385)


def test_missing_text_files_are_told_with_their_source(copy: Path) -> None:
    for name in ("vocab.json", "tokenizer_config.json"):
        (copy / name).unlink()
    told = "put that of its Qwen2.5 language model there"
    with pytest.raises(FileNotFoundError, match=rf"has no vocab\.json; {told}"):
        Tokenizer.from_checkpoint(copy, 1000)
    with pytest.raises(FileNotFoundError, match=rf"has no tokenizer_config\.json; {told}"):
        read_controls(copy, 1000)


def test_a_vocabulary_without_the_marks_of_speech_is_refused(copy: Path) -> None:
    (copy / "tokenizer_config.json").write_text('{"added_tokens_decoder": {}}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"has <\|vision_start\|> as None, must be 0 to 999"):
        read_controls(copy, 1000)
