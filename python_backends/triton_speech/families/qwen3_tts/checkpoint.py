"""Reads and writes checkpoints: ``model.safetensors`` and ``speech_tokenizer/model.safetensors``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from ..checkpoint_tensors import CheckpointError, Shapes, check_tensors, shapes_of
from ..decoder_layers import fuse
from ..shapes_only import shapes_only
from .codec_config import FOLDER, SpeechTokenizerConfig
from .config import LENGTH, Qwen3TTSConfig
from .model import Qwen3TTSTalker
from .speaker_encoder import SpeakerEncoder
from .speech_decoder import SpeechDecoder
from .speech_encoder import SpeechEncoder

MODEL_FILE = "model.safetensors"
TALKER, SPEAKER, DECODER, ENCODER = "talker.", "speaker_encoder.", "decoder.", "encoder."


def load_talker(
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    length: int | None = None,
    fused: bool = True,
) -> Qwen3TTSTalker:
    """The talker of a checkpoint, ready to run.

    Args:
        folder: the checkpoint's folder.
        device: where the weights go.
        dtype: of the weights; the checkpoint's own ``dtype`` when None.
        length: positions that a stream may have; see ``config.LENGTH`` for None.
        fused: join projections that read the same input. Without it ``state_dict()`` has the checkpoint's names.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the configuration or a tensor does not fit.
    """
    config = Qwen3TTSConfig.from_checkpoint(folder)
    device = torch.device(device)
    with shapes_only():
        model = Qwen3TTSTalker(config.talker_config, length=length or config.talker_facts.length)
    _fill(model, folder, MODEL_FILE, TALKER, _talker_parts(config), device, dtype or getattr(torch, config.dtype))
    model.materialise(device)
    if fused:
        fuse(model)
    return model.eval().requires_grad_(False)


def load_speaker_encoder(folder: Path, *, device: torch.device | str = "cpu") -> SpeakerEncoder:
    """The speaker encoder of a Base checkpoint, in fp32.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the checkpoint has none, or the configuration or a tensor does not fit.
    """
    config = Qwen3TTSConfig.from_checkpoint(folder)
    if config.tts_model_type != "base" or config.speaker_encoder_config is None:
        raise ValueError(f"checkpoint {folder.name!r} is a {config.tts_model_type} model, which follows no recordings")
    with shapes_only():
        model = SpeakerEncoder(config.speaker_encoder_config)
    _fill(model, folder, MODEL_FILE, SPEAKER, _talker_parts(config), torch.device(device), torch.float32)
    return model.eval().requires_grad_(False)


def load_speech_decoder(folder: Path, *, device: torch.device | str = "cpu") -> SpeechDecoder:
    """The decoder of a checkpoint's speech tokenizer, in fp32.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the configuration or a tensor does not fit.
    """
    config = SpeechTokenizerConfig.from_checkpoint(folder)
    with shapes_only():
        model = SpeechDecoder(config.decoder_config)
    _fill(model, folder, f"{FOLDER}/{MODEL_FILE}", DECODER, _codec_parts(config), torch.device(device), torch.float32)
    return model.eval().requires_grad_(False)


def load_speech_encoder(folder: Path, *, device: torch.device | str = "cpu") -> SpeechEncoder:
    """The encoder of a checkpoint's speech tokenizer, in fp32.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the configuration or a tensor does not fit.
    """
    config = SpeechTokenizerConfig.from_checkpoint(folder)
    with shapes_only():
        model = SpeechEncoder(config.encoder_config, config.encoder_valid_num_quantizers)
    _fill(model, folder, f"{FOLDER}/{MODEL_FILE}", ENCODER, _codec_parts(config), torch.device(device), torch.float32)
    return model.eval().requires_grad_(False)


def model_shapes(config: Qwen3TTSConfig) -> Shapes:
    """Names and shapes that ``model.safetensors`` must have."""
    return _shapes(_talker_parts(config))


def codec_shapes(config: SpeechTokenizerConfig) -> Shapes:
    """Names and shapes that ``speech_tokenizer/model.safetensors`` must have."""
    return _shapes(_codec_parts(config))


def save_tensors(path: Path, parts: Mapping[str, nn.Module], dtype: torch.dtype) -> None:
    """Writes modules, unfused, under their prefixes."""
    tensors = {
        prefix + name: tensor.to(dtype).contiguous()
        for prefix, module in parts.items()
        for name, tensor in module.state_dict().items()
    }
    save_file(tensors, path, metadata={"format": "pt"})


def _talker_parts(config: Qwen3TTSConfig) -> dict[str, nn.Module]:
    with shapes_only():
        parts: dict[str, nn.Module] = {TALKER: Qwen3TTSTalker(config.talker_config, length=LENGTH)}
        if config.tts_model_type == "base" and config.speaker_encoder_config is not None:
            parts[SPEAKER] = SpeakerEncoder(config.speaker_encoder_config)
    return parts


def _codec_parts(config: SpeechTokenizerConfig) -> dict[str, nn.Module]:
    with shapes_only():
        return {
            DECODER: SpeechDecoder(config.decoder_config),
            ENCODER: SpeechEncoder(config.encoder_config, config.encoder_valid_num_quantizers),
        }


def _shapes(parts: Mapping[str, nn.Module]) -> Shapes:
    return {name: shape for prefix, part in parts.items() for name, shape in shapes_of(part, prefix).items()}


def _fill(
    model: nn.Module,
    folder: Path,
    name: str,
    prefix: str,
    parts: Mapping[str, nn.Module],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Checks the whole file, and gives ``model`` (on meta) its tensors that begin with ``prefix``."""
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {folder.name!r} has no {name}")
    whose = f"{name} of checkpoint {folder.name!r}"
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            found = {key: tuple(file.get_slice(key).get_shape()) for key in names}
            check_tensors(_shapes(parts), found, whose)
            tensors = {key[len(prefix) :]: file.get_tensor(key) for key in found if key.startswith(prefix)}
    except SafetensorError as error:
        raise CheckpointError(f"{whose} is damaged: {error}") from error
    model.load_state_dict({key: tensor.to(device, dtype) for key, tensor in tensors.items()}, assign=True)
