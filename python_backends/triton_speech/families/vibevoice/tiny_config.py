"""The configuration files of tiny checkpoints: the published ones' fields, with small numbers."""

from __future__ import annotations

from typing import Any

HIDDEN = 64
LATENT, SEMANTIC = 64, 128
RATIOS = [8, 5, 5, 4, 2, 2]


def model_fields(vocab_size: int) -> dict[str, Any]:
    """``config.json``. Ratios, and with them the rate of frames, are the published ones."""
    tokenizer = {
        "causal": True,
        "channels": 1,
        "conv_bias": True,
        "conv_norm": "none",
        "corpus_normalize": 0.0,
        "disable_last_norm": True,
        "encoder_depths": "1-1-1-1-1-1-2",
        "encoder_n_filters": 2,
        "encoder_ratios": RATIOS,
        "layer_scale_init_value": 1e-06,
        "layernorm": "RMSNorm",
        "layernorm_elementwise_affine": True,
        "layernorm_eps": 1e-05,
        "mixer_layer": "depthwise_conv",
        "pad_mode": "constant",
        "weight_init_value": 0.01,
    }
    return {
        "acoustic_vae_dim": LATENT,
        "acoustic_tokenizer_config": {
            **tokenizer,
            "decoder_depths": None,
            "decoder_n_filters": 2,
            "decoder_ratios": RATIOS,
            "fix_std": 0.5,
            "model_type": "vibevoice_acoustic_tokenizer",
            "std_dist_type": "gaussian",
            "vae_dim": LATENT,
        },
        "architectures": ["VibeVoiceForConditionalGeneration"],
        "decoder_config": {
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "initializer_range": 0.02,
            "intermediate_size": 96,
            "max_position_embeddings": 16384,
            "max_window_layers": 2,
            "model_type": "qwen2",
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": vocab_size,
        },
        "diffusion_head_config": {
            "ddpm_batch_mul": 4,
            "ddpm_beta_schedule": "cosine",
            "ddpm_num_inference_steps": 20,
            "ddpm_num_steps": 1000,
            "diffusion_type": "ddpm",
            "head_ffn_ratio": 3.0,
            "head_layers": 2,
            "hidden_size": HIDDEN,
            "latent_size": LATENT,
            "model_type": "vibevoice_diffusion_head",
            "prediction_type": "v_prediction",
            "rms_norm_eps": 1e-05,
            "speech_vae_dim": LATENT,
        },
        "model_type": "vibevoice",
        "semantic_tokenizer_config": {
            **tokenizer,
            "fix_std": 0,
            "model_type": "vibevoice_semantic_tokenizer",
            "std_dist_type": "none",
            "vae_dim": SEMANTIC,
        },
        "semantic_vae_dim": SEMANTIC,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def preprocessor_fields() -> dict[str, Any]:
    """``preprocessor_config.json``."""
    return {
        "processor_class": "VibeVoiceProcessor",
        "speech_tok_compress_ratio": 3200,
        "db_normalize": True,
        "audio_processor": {
            "feature_extractor_type": "VibeVoiceTokenizerProcessor",
            "sampling_rate": 24000,
            "normalize_audio": True,
            "target_dB_FS": -25,
            "eps": 1e-06,
        },
        "language_model_pretrained_name": "Qwen/Qwen2.5-1.5B",
    }
