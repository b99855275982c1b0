"""A random checkpoint of the smallest sensible size, in every detail of the real one's format."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..decoder_layers import Layer
from .checkpoint import DECODER, ENCODER, MODEL_FILE, SPEAKER, TALKER, save_tensors
from .codec_config import FOLDER, SpeechTokenizerConfig
from .config import ModelType, Qwen3TTSConfig
from .model import Qwen3TTSTalker
from .speaker_encoder import SpeakerEncoder
from .speech_decoder import CausalConv, SpeechDecoder
from .speech_encoder import SpeechEncoder
from .tiny_config import codec_fields, generation_fields, talker_fields
from .tiny_tokenizer import write_tiny_tokenizer

NOISE = 0.05
"""Spread of what a trained network keeps near 0 (biases) or 1 (norms)."""
BRANCH = 0.3
"""What residual branches are scaled with."""
OUTPUT_GAIN = 0.02
LIFT = 3.0
"""Of one component of all text, by which the end can be told to come at once or never."""
END_GAIN = 20.0


def write_tiny_checkpoint(
    path: Path,
    *,
    kind: ModelType = "base",
    seed: int = 0,
    stops_at_once: bool | None = False,
    head_dim: int = 32,
    speech_tokenizer: dict[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """Writes a Qwen3-TTS checkpoint with random weights and a small vocabulary. It makes noise, not speech.

    All that needs a checkpoint runs on it, upstream's package included, in milliseconds on a CPU: 24 kHz, 16 codebooks,
    80 ms of audio for each frame. Streams run to their length cap.

    Args:
        path: the folder; made when it does not exist.
        kind: ``base`` follows recordings, ``custom_voice`` has speakers, ``voice_design`` follows instructions.
        seed: of the weights. The same seed gives the same bytes.
        stops_at_once: make streams stop at the first step that may be their last; None leaves it to chance.
        head_dim: of the talker's and the code predictor's heads; 32 is the smallest that vLLM attends with on a CPU.
        speech_tokenizer: fields of the speech tokenizer's ``config.json``.
        overrides: fields of ``config.json``. A mapping is merged into the section of that name.

    Returns:
        ``path``.

    Raises:
        ValueError: an override names no field, or the configuration does not fit.
    """
    (path / FOLDER).mkdir(parents=True, exist_ok=True)
    fields = _merged(talker_fields(kind, write_tiny_tokenizer(path), head_dim), overrides, "")
    codec = _merged(codec_fields(), speech_tokenizer or {}, f"{FOLDER}.")
    config = Qwen3TTSConfig.model_validate(fields)
    codec_config = SpeechTokenizerConfig.model_validate(codec)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        talker = Qwen3TTSTalker(config.talker_config, length=64)
        parts: dict[str, nn.Module] = {TALKER: talker}
        if config.tts_model_type == "base" and config.speaker_encoder_config is not None:
            parts[SPEAKER] = SpeakerEncoder(config.speaker_encoder_config)
        decoder = SpeechDecoder(codec_config.decoder_config)
        codecs: dict[str, nn.Module] = {
            DECODER: decoder,
            ENCODER: SpeechEncoder(codec_config.encoder_config, codec_config.encoder_valid_num_quantizers),
        }
        for module in (*parts.values(), *codecs.values()):
            for name, tensor in module.state_dict().items():
                tensor.copy_(_draw(name, tensor, source))
        if stops_at_once is not None:
            _lean(talker, stops_at_once)
        _quieten(decoder)
    save_tensors(path / MODEL_FILE, parts, getattr(torch, config.dtype))
    save_tensors(path / FOLDER / MODEL_FILE, codecs, torch.float32)
    _write(path / "config.json", fields)
    _write(path / "generation_config.json", generation_fields())
    _write(path / "preprocessor_config.json", {"processor_class": "Qwen3TTSProcessor", "padding_side": "left"})
    _write(path / FOLDER / "config.json", codec)
    _write(
        path / FOLDER / "preprocessor_config.json",
        {
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": codec_config.input_sample_rate,
        },
    )
    return path


def _merged(base: dict[str, Any], overrides: dict[str, Any], section: str) -> dict[str, Any]:
    merged = dict(base)
    for name, value in overrides.items():
        if name not in base:
            raise ValueError(f"config.json has no field {section}{name}; its fields are {', '.join(base)}")
        nested = isinstance(base[name], dict) and isinstance(value, dict)
        merged[name] = _merged(base[name], value, f"{section}{name}.") if nested else value
    return merged


def _draw(name: str, tensor: Tensor, source: torch.Generator) -> Tensor:
    """Random values that keep activations near 1, for the tensor of that name."""
    noise = torch.randn(tensor.shape, generator=source)
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "initialized":
        return torch.ones(tensor.shape)
    if leaf == "cluster_usage":
        # Some entries were hardly ever used: their counts are below the least that is divided by.
        return torch.where(noise < -2, 1e-6, 1 + noise.abs())
    if leaf in ("embedding_sum", "embed_sum") or "embedding" in name:
        return noise
    if leaf in ("gamma", "scale"):
        return BRANCH * (1 + NOISE * noise)
    if leaf in ("alpha", "beta"):
        return BRANCH * noise
    if leaf == "bias":
        return NOISE * noise
    if "norm" in name:
        return 1 + NOISE * noise
    # An upsampling convolution sums over its first dimension and two of its taps; the others over all but the first.
    upsampling = name.endswith("block.1.conv.weight") or (name.startswith("upsample") and ".0." in name)
    fan_in = (2 if "block" in name else 1) * tensor.shape[0] if upsampling else tensor[0].numel()
    gain = BRANCH if ".conv2." in name else 1.0
    return gain * noise / math.sqrt(fan_in)


def _lean(talker: Qwen3TTSTalker, stops_at_once: bool) -> None:
    """Gives all text one component that nothing else touches, and lets the end's logit follow it alone."""
    talker.text_projection.linear_fc2.weight[0] = 0
    talker.text_projection.linear_fc2.bias[0] = LIFT
    for module in talker.modules():
        if isinstance(module, nn.Embedding) and module.embedding_dim == talker.config.hidden_size:
            module.weight[:, 0] = 0
        elif isinstance(module, Layer):
            module.self_attn.o_proj.weight[0] = 0
            module.mlp.down_proj.weight[0] = 0
    talker.codec_head.weight[:, 0] = 0
    end = talker.codec_head.weight[talker.config.codec_eos_token_id]
    end.zero_()
    end[0] = END_GAIN if stops_at_once else -END_GAIN


def _quieten(decoder: SpeechDecoder) -> None:
    """Without it a random decoder's samples lie outside -1 to 1."""
    last = decoder.decoder[-1]
    assert isinstance(last, CausalConv)
    last.conv.weight.mul_(OUTPUT_GAIN)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
