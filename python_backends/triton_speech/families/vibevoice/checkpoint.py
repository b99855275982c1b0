"""Reads and writes checkpoints: ``model.safetensors``, or its shards with ``model.safetensors.index.json``."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..checkpoint_tensors import CheckpointError, Shapes, check_tensors, shapes_of
from ..decoder_layers import fuse
from ..rope import Rope
from ..shapes_only import shapes_only
from .config import VibeVoiceConfig
from .model import VibeVoice

MODEL_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
ACOUSTIC_ENCODER = "model.acoustic_tokenizer.encoder."
SPEECH = ("model.acoustic_tokenizer.", "model.semantic_tokenizer.", "model.speech_")
"""Always fp32: audio is made of these."""


def load_speaker(
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    length: int | None = None,
    fused: bool = True,
) -> VibeVoice:
    """All that speaks, which is all but the acoustic encoder.

    Args:
        folder: the checkpoint's folder.
        device: where the weights go.
        dtype: of the language model, the diffusion head and the connectors; the checkpoint's own when None.
        length: positions that a stream may have; see ``config.LENGTH`` for None.
        fused: join projections that read the same input. Without it ``state_dict()`` has the checkpoint's names.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the configuration or a tensor does not fit, or ``length`` is more than the model knows.
    """
    config = VibeVoiceConfig.from_checkpoint(folder)
    most = config.decoder_config.max_position_embeddings
    if length is not None and not 1 <= length <= most:
        raise ValueError(f"length is {length}, the model of checkpoint {folder.name!r} has positions for 1 to {most}")
    kind = dtype or getattr(torch, config.torch_dtype)
    model = _load(
        folder,
        config,
        torch.device(device),
        length or config.talker_facts.length,
        lambda name: torch.float32 if name.startswith(SPEECH) else kind,
        lambda name: not name.startswith(ACOUSTIC_ENCODER),
    )
    if fused:
        fuse(model)
    return model


def load_listener(folder: Path, *, device: torch.device | str = "cpu") -> VibeVoice:
    """The acoustic encoder and its scale, in fp32; every other weight stays on the meta device.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the configuration or a tensor does not fit.
    """
    config = VibeVoiceConfig.from_checkpoint(folder)
    return _load(
        folder,
        config,
        torch.device(device),
        1,
        lambda name: torch.float32,
        lambda name: name.startswith((ACOUSTIC_ENCODER, "model.speech_")),
    )


def model_shapes(config: VibeVoiceConfig) -> Shapes:
    """Names and shapes that a checkpoint must have."""
    with shapes_only():
        return shapes_of(VibeVoice(config, length=1))


def save_model(path: Path, model: nn.Module, dtype: torch.dtype) -> None:
    """Writes ``model.safetensors``."""
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt"})


def _load(
    folder: Path,
    config: VibeVoiceConfig,
    device: torch.device,
    length: int,
    kind_of: Callable[[str], torch.dtype],
    is_wanted: Callable[[str], bool],
) -> VibeVoice:
    with shapes_only():
        model = VibeVoice(config, length=length)
    files = _files(folder)
    whose = f"the weights of checkpoint {folder.name!r}"
    found: dict[str, Any] = {}
    try:
        with ExitStack() as stack:
            for path in files:
                file = stack.enter_context(safe_open(path, "pt"))
                found |= dict.fromkeys(file.keys(), file)
            check_tensors(
                shapes_of(model), {name: tuple(f.get_slice(name).get_shape()) for name, f in found.items()}, whose
            )
            tensors: dict[str, Tensor] = {
                name: file.get_tensor(name).to(device, kind_of(name)) for name, file in found.items() if is_wanted(name)
            }
    except SafetensorError as error:
        raise CheckpointError(f"{whose} are damaged: {error}") from error
    for name in ("model.speech_scaling_factor", "model.speech_bias_factor"):
        if not tensors[name].isfinite():
            raise CheckpointError(f"{whose} do not fit: {name} is {tensors[name].item()}, must be finite")
    model.load_state_dict(tensors, assign=True, strict=False)
    rope = model.model.language_model.rope
    assert isinstance(rope, Rope)
    rope.build_tables(device)
    return model.eval().requires_grad_(False)


def _files(folder: Path) -> list[Path]:
    """The files with the weights.

    Raises:
        FileNotFoundError: one of them is missing.
        CheckpointError: the index is not readable.
    """
    names = [MODEL_FILE]
    if (index := folder / INDEX_FILE).is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{INDEX_FILE} of checkpoint {folder.name!r} is not readable: {error}") from error
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"checkpoint {folder.name!r} has no {name}")
    return [folder / name for name in names]
