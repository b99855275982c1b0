"""A random checkpoint of the smallest sensible size, in every detail of the real one's format."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..decoder_layers import Layer
from .checkpoint import MODEL_FILE, save_model
from .config import VibeVoiceConfig
from .diffusion_head import Connector
from .model import VibeVoice
from .tiny_config import HIDDEN, model_fields, preprocessor_fields
from .tiny_tokenizer import write_tiny_tokenizer
from .tokenizer import Controls, read_controls

NOISE = 0.05
"""Spread of what a trained network keeps near 0 (biases) or 1 (norms)."""
BRANCH = 0.3
"""What residual branches are scaled with."""
OUTPUT_GAIN = 0.1
LIFT = 3.0
"""Of one component of all that is read, by which what is said can be told."""
SAID = 20.0


def write_tiny_checkpoint(path: Path, *, seed: int = 0, stops_at_once: bool | None = False, **overrides: Any) -> Path:
    """Writes a VibeVoice checkpoint with random weights and a small vocabulary. It makes noise, not speech.

    All that needs a checkpoint runs on it, upstream's package included, in milliseconds on a CPU: 24 kHz, 133 ms of
    audio for each frame. Streams run to their length cap.

    Args:
        path: the folder; made when it does not exist.
        seed: of the weights. The same seed gives the same bytes.
        stops_at_once: make streams end at their first step; None leaves what is said to chance.
        overrides: fields of ``config.json``. A mapping is merged into the section of that name.

    Returns:
        ``path``.

    Raises:
        ValueError: an override names no field, or the configuration does not fit.
    """
    path.mkdir(parents=True, exist_ok=True)
    fields = _merged(model_fields(write_tiny_tokenizer(path)), overrides, "")
    config = VibeVoiceConfig.model_validate(fields)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        model = VibeVoice(config, length=64)
        for name, tensor in model.state_dict().items():
            tensor.copy_(_draw(name, tensor, source))
        last = model.model.acoustic_tokenizer.decoder.head.conv["conv"]
        assert isinstance(last, nn.Conv1d)
        last.weight.mul_(OUTPUT_GAIN)
        if stops_at_once is not None:
            _lean(model, read_controls(path, config.decoder_config.vocab_size), stops_at_once)
    save_model(path / MODEL_FILE, model, getattr(torch, config.torch_dtype))
    _write(path / "config.json", fields)
    _write(path / "preprocessor_config.json", preprocessor_fields())
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
    if leaf == "speech_scaling_factor":
        return torch.full((), 0.8)
    if leaf == "speech_bias_factor":
        return torch.full((), -0.1)
    if leaf.endswith("gamma"):
        return BRANCH * (1 + NOISE * noise)
    if leaf == "bias":
        # Those of queries, keys and values are large in trained models.
        return (1.0 if "self_attn" in name else NOISE) * noise
    if "norm" in name:
        return 1 + NOISE * noise
    if "embed_tokens" in name or "lm_head" in name:
        return BRANCH * noise
    # An upsampling convolution sums over its first dimension and two of its taps; the others over all but the first.
    fan_in = 2 * tensor.shape[0] if "convtr" in name else tensor[0].numel()
    gain = BRANCH if "adaLN" in name else 1.0
    return gain * noise / math.sqrt(fan_in)


def _lean(model: VibeVoice, controls: Controls, stops_at_once: bool) -> None:
    """Gives all that is read one component that nothing else touches, and lets what is said follow it alone."""
    embeddings = model.model.language_model.embed_tokens.weight
    embeddings[:, 0] = LIFT
    for part in model.modules():
        if isinstance(part, Connector):
            part.fc2.weight[0] = 0
            part.fc2.bias[0] = LIFT / 2
        elif isinstance(part, Layer):
            part.self_attn.o_proj.weight[0] = 0
            part.mlp.down_proj.weight[0] = 0
    head = model.head_weight
    for token in (controls.start, controls.end, controls.frame, controls.over):
        # In a wide model (``random_checkpoint.py``) what else is there would outweigh one component.
        head[token] *= HIDDEN / head.shape[1]
        head[token, 0] = LIFT
    head[controls.over if stops_at_once else controls.frame, 0] = SAID


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
