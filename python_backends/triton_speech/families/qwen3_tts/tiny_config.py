"""The configuration files of tiny checkpoints: the published ones' fields, with small numbers."""

from __future__ import annotations

from typing import Any

from .config import RESERVED, ModelType

CODES = 64
GROUPS = 16
HIDDEN = 64
CONTROLS = {
    "codec_pad_id": 900,
    "codec_bos_id": 901,
    "codec_eos_token_id": 902,
    "codec_think_id": 903,
    "codec_nothink_id": 904,
    "codec_think_bos_id": 905,
    "codec_think_eos_id": 906,
}
LANGUAGES = {"chinese": 910, "english": 911, "german": 912}
DIALECTS = {"beijing_dialect": 920}
SPEAKERS = {"vivian": 930, "dylan": 931}


def talker_fields(kind: ModelType, text: dict[str, int], head_dim: int) -> dict[str, Any]:
    """``config.json``; ``text`` are the ids of the text side and ``text_vocab_size``."""
    stack = {
        "attention_bias": False,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "max_position_embeddings": 32768,
        "num_attention_heads": 4,
        "num_code_groups": GROUPS,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    speaks = kind == "custom_voice"
    ids = {name: value for name, value in text.items() if name != "text_vocab_size"}
    fields: dict[str, Any] = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "1b7",
        "tts_model_type": kind,
        **ids,
        "dtype": "float32",
        "talker_config": {
            **stack,
            **CONTROLS,
            "model_type": "qwen3_tts_talker",
            "codec_language_id": LANGUAGES | (DIALECTS if speaks else {}),
            "spk_id": dict(SPEAKERS) if speaks else {},
            "spk_is_dialect": {"vivian": False, "dylan": "beijing_dialect"} if speaks else {},
            "position_id_per_seconds": 13,
            "rope_scaling": {
                "interleaved": True,
                "mrope_section": [head_dim // 2 - 2 * (head_dim // 6), head_dim // 6, head_dim // 6],
                "rope_type": "default",
                "type": "default",
            },
            "text_hidden_size": 48,
            "text_vocab_size": text["text_vocab_size"],
            "vocab_size": CODES + RESERVED,
            "code_predictor_config": {
                **stack,
                "model_type": "qwen3_tts_talker_code_predictor",
                "max_position_embeddings": 65536,
                "vocab_size": CODES,
            },
        },
    }
    if kind == "base":
        fields["speaker_encoder_config"] = {
            "enc_dim": HIDDEN,
            "sample_rate": 24000,
            "mel_dim": 128,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_kernel_sizes": [5, 3, 3, 3, 1],
            "enc_dilations": [1, 2, 3, 4, 1],
            "enc_attention_channels": 8,
            "enc_res2net_scale": 4,
            "enc_se_channels": 8,
        }
    return fields


def codec_fields() -> dict[str, Any]:
    """``speech_tokenizer/config.json``."""
    attention = {
        "attention_bias": False,
        "head_dim": 16,
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 8000,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rope_theta": 10000.0,
        "layer_scale_initial_scale": 0.01,
    }
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": GROUPS,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "decoder_config": {
            **attention,
            "latent_dim": 24,
            "codebook_dim": 16,
            "codebook_size": CODES,
            "decoder_dim": 32,
            "hidden_act": "silu",
            "num_quantizers": GROUPS,
            "num_semantic_quantizers": 1,
            "rms_norm_eps": 1e-05,
            "sliding_window": 6,
            "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2],
        },
        "encoder_config": {
            **attention,
            "_frame_rate": 12.5,
            "audio_channels": 1,
            "codebook_dim": 8,
            "codebook_size": CODES,
            "compress": 2,
            "dilation_growth_rate": 2,
            "hidden_act": "gelu",
            "kernel_size": 7,
            "last_kernel_size": 3,
            "norm_eps": 1e-05,
            "normalize": False,
            "num_filters": 4,
            "num_quantizers": GROUPS + 2,
            "num_residual_layers": 1,
            "num_semantic_quantizers": 1,
            "pad_mode": "constant",
            "residual_kernel_size": 3,
            "sampling_rate": 24000,
            "sliding_window": 5,
            "trim_right_ratio": 1.0,
            "upsample_groups": 32,
            "upsampling_ratios": [8, 6, 5, 4],
            "use_cache": False,
            "use_causal_conv": True,
            "use_conv_shortcut": False,
            "use_streaming": False,
            "vector_quantization_hidden_dimension": 8,
        },
    }


def generation_fields() -> dict[str, Any]:
    """``generation_config.json``, as published."""
    return {
        "do_sample": True,
        "repetition_penalty": 1.05,
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": 50,
        "subtalker_dosample": True,
        "subtalker_temperature": 0.9,
        "subtalker_top_p": 1.0,
        "subtalker_top_k": 50,
        "max_new_tokens": 8192,
    }
