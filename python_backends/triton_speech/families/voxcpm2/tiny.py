"""A random checkpoint of the smallest sensible size, in every detail of the real one's format."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .audio_vae import AudioVAE, CausalConv, CausalUpsample, ResidualUnit
from .checkpoint import save_checkpoint
from .config import VoxCPM2Config
from .model import VoxCPM2Talker
from .tiny_tokenizer import write_tiny_tokenizer

HEAD_DIM = 32
"""The smallest that vLLM attends with on a CPU."""
NOISE = 0.05
"""Spread of what a trained network keeps near 0 (biases) or 1 (norms)."""
RESIDUAL_GAIN = 0.3
UPSAMPLE_GAIN = 0.8
OUTPUT_GAIN = 0.15
STOP_LIFT = 5.0


def write_tiny_checkpoint(
    path: Path, *, seed: int = 0, stops_at_once: bool = False, head_dim: int = HEAD_DIM, **overrides: Any
) -> Path:
    """Writes a VoxCPM2 checkpoint with random weights and a small vocabulary. It makes noise, not speech.

    All that needs a checkpoint runs on it, upstream's package included, in milliseconds on a CPU: 16 kHz in and
    48 kHz out as in the real one, 80 ms of audio for each LM step. Streams run to their length cap.

    Args:
        path: the folder; made when it does not exist.
        seed: of the weights. The same seed gives the same bytes.
        stops_at_once: make streams stop at the first step that may be their last.
        head_dim: of every attention head.
        overrides: fields of ``config.json``. A mapping is merged into the section of that name.

    Returns:
        ``path``.

    Raises:
        ValueError: an override names no field, or the configuration does not fit.
    """
    path.mkdir(parents=True, exist_ok=True)
    config_fields = _merged(_tiny_config(write_tiny_tokenizer(path), head_dim), overrides, "")
    config_json = json.dumps(config_fields, indent=2) + "\n"
    config = VoxCPM2Config.model_validate_json(config_json)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        talker = VoxCPM2Talker(config)
        vae = AudioVAE(config.audio_vae_config)
        for name, parameter in talker.named_parameters():
            parameter.copy_(_draw(name, parameter, source))
        _lean(talker, stops_at_once)
        for name, parameter in vae.named_parameters():
            parameter.copy_(_draw(name, parameter, source))
        _quieten(vae)
    save_checkpoint(path, config_json, talker.to(getattr(torch, config.dtype)), vae)
    return path


def _tiny_config(vocab_size: int, head_dim: int) -> dict[str, Any]:
    half = head_dim // 2
    factors = [math.exp(index / (half - 1) * math.log(31)) for index in range(half)]
    local = {"hidden_dim": 32, "ffn_dim": 64, "num_heads": 2, "num_layers": 1, "kv_channels": head_dim}
    return {
        "architecture": "voxcpm2",
        "lm_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "max_position_embeddings": 32768,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000,
            "kv_channels": head_dim,
            "rope_scaling": {
                "type": "longrope",
                "long_factor": factors,
                "short_factor": factors,
                "original_max_position_embeddings": 32768,
            },
            "vocab_size": vocab_size,
            "use_mup": False,
            "scale_emb": 12,
            "dim_model_base": 256,
            "scale_depth": 1.4,
        },
        "patch_size": 2,
        "feat_dim": 8,
        "scalar_quantization_latent_dim": 16,
        "scalar_quantization_scale": 9,
        "residual_lm_num_layers": 1,
        "residual_lm_no_rope": True,
        "encoder_config": dict(local),
        "dit_config": {
            **local,
            "mean_mode": False,
            "cfm_config": {
                "sigma_min": 1e-06,
                "solver": "euler",
                "t_scheduler": "log-norm",
                "inference_cfg_rate": 2.0,
            },
        },
        "audio_vae_config": {
            "encoder_dim": 4,
            "encoder_rates": [2, 5, 8, 8],
            "latent_dim": 8,
            "decoder_dim": 128,
            "decoder_rates": [8, 6, 5, 2, 2, 2],
            "sr_bin_boundaries": [20000, 30000, 40000],
            "sample_rate": 16000,
            "out_sample_rate": 48000,
        },
        "max_length": 512,
        "device": "cpu",
        "dtype": "float32",
    }


def _merged(base: dict[str, Any], overrides: dict[str, Any], section: str) -> dict[str, Any]:
    merged = dict(base)
    for name, value in overrides.items():
        if name not in base:
            raise ValueError(f"config.json has no field {section}{name}; its fields are {', '.join(base)}")
        nested = isinstance(base[name], dict) and isinstance(value, dict)
        merged[name] = _merged(base[name], value, f"{section}{name}.") if nested else value
    return merged


def _draw(name: str, parameter: Tensor, source: torch.Generator) -> Tensor:
    """Random values that keep activations near 1, for the parameter of that name."""
    noise = torch.randn(parameter.shape, generator=source)
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "alpha" or "norm" in name or "scale_embed" in name:
        return 1 + NOISE * noise
    if leaf == "bias" or "bias_embed" in name:
        return NOISE * noise
    if leaf == "special_token" or "embed_tokens" in name:
        return noise
    return noise / math.sqrt(parameter[0].numel())


def _lean(talker: VoxCPM2Talker, stops_at_once: bool) -> None:
    """Makes SiLU see positive values only, so that weights of one sign prefer the same answer, whatever the state."""
    talker.stop_proj.bias.add_(STOP_LIFT)
    weight = talker.stop_head.weight[0].abs()
    go_on = -weight if stops_at_once else weight
    talker.stop_head.weight.copy_(torch.stack((go_on, -go_on)))


def _quieten(vae: AudioVAE) -> None:
    """Without batch statistics a deep random decoder grows until its tanh only knows -1 and 1."""
    for module in vae.modules():
        if isinstance(module, ResidualUnit):
            *_, branch = (layer for layer in module.block if isinstance(layer, CausalConv))
            branch.weight.mul_(RESIDUAL_GAIN)
        elif isinstance(module, CausalUpsample):
            # Its first dimension is the input: each output sums over all of these, at two of the taps.
            fan_in = 2 * module.in_channels
            module.weight.mul_(UPSAMPLE_GAIN * math.sqrt(module.weight[0].numel() / fan_in))
    *_, last = (module for module in vae.decoder.modules() if isinstance(module, CausalConv))
    last.weight.mul_(OUTPUT_GAIN)
