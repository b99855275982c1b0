"""Configurations that do not fit are refused, with field, value and limit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triton_speech.families.qwen3_tts.codec_config import SpeechTokenizerConfig
from triton_speech.families.qwen3_tts.config import Qwen3TTSConfig

Checkpoint = Callable[[str], Path]


def changed(folder: Path, name: str, path: str, value: Any, out: Path) -> Path:
    """A folder whose file ``name`` has another value at ``path``."""
    fields = json.loads((folder / name).read_text(encoding="utf-8"))
    *sections, field = path.split(".")
    section = fields
    for key in sections:
        section = section[key]
    section[field] = value
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text(json.dumps(fields), encoding="utf-8")
    return out


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("talker_config.num_key_value_heads", 3, "num_attention_heads is 4, not a multiple of num_key_value_heads (3)"),
        ("talker_config.head_dim", 15, "talker_config.head_dim is 15: Input should be a multiple of 2"),
        ("talker_config.codec_eos_token_id", 3, "codec_eos_token_id is 3, controls are 64 to 1087"),
        ("talker_config.codec_language_id", {"english": 1088}, "codec_language_id.english is 1088, controls are"),
        ("talker_config.num_code_groups", 15, "num_code_groups is 15, that of code_predictor_config 16"),
        ("talker_config.rope_scaling.mrope_section", [1, 1, 1], "mrope_section has 3 pairs, half of head_dim is 8"),
        ("speaker_encoder_config.enc_dim", 32, "enc_dim is 32, talker_config.hidden_size is 64"),
        ("speaker_encoder_config.enc_channels", [16, 16, 16, 16, 40], "must be the sum of those between"),
        ("tts_pad_token_id", 99999, "tts_pad_token_id is 99999, text tokens are 0 to"),
        ("tokenizer_type", "qwen3_tts_tokenizer_25hz", "tokenizer_type is 'qwen3_tts_tokenizer_25hz'"),
    ],
)
def test_a_talkers_field_that_does_not_fit_is_named(
    checkpoint: Checkpoint, tmp_path: Path, path: str, value: Any, said: str
) -> None:
    folder = changed(checkpoint("base"), "config.json", path, value, tmp_path)
    with pytest.raises(ValueError, match="is not usable") as raised:
        Qwen3TTSConfig.from_checkpoint(folder)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("decode_upsample_rate", 960, "decode_upsample_rate is 960, the decoder's rates make it 1920"),
        ("encode_downsample_rate", 960, "encode_downsample_rate is 960, twice the encoder's ratios make it 1920"),
        ("decoder_config.num_quantizers", 8, "decoder_config.num_quantizers make it 8"),
        ("encoder_config.num_quantizers", 9, "encoder_config.num_quantizers is 9, encoder_valid_num_quantizers is 16"),
        ("decoder_config.decoder_dim", 40, "decoder_dim is 40, it must be halved for each of 4"),
        ("encoder_config.use_causal_conv", False, "encoder_config.use_causal_conv is False"),
    ],
)
def test_a_tokenizers_field_that_does_not_fit_is_named(
    checkpoint: Checkpoint, tmp_path: Path, path: str, value: Any, said: str
) -> None:
    folder = changed(checkpoint("base"), "speech_tokenizer/config.json", path, value, tmp_path)
    with pytest.raises(ValueError, match="is not usable") as raised:
        SpeechTokenizerConfig.from_checkpoint(folder)
    assert said in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        Qwen3TTSConfig.from_checkpoint(tmp_path)


def test_the_small_speaker_model_follows_no_instruction(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = checkpoint("custom_voice")
    assert Qwen3TTSConfig.from_checkpoint(folder).follows_instructions
    small = changed(folder, "config.json", "tts_model_size", "0b6", tmp_path)
    assert not Qwen3TTSConfig.from_checkpoint(small).follows_instructions
