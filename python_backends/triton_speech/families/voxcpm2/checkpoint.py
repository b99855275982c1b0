"""Reads and writes checkpoints: ``config.json``, ``model.safetensors``, ``audiovae.safetensors`` or ``.pth``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..checkpoint_tensors import CheckpointError, Shapes, check_tensors, shapes_of
from ..shapes_only import shapes_only
from .audio_vae import AudioVAE, checkpoint_tensors, fold_weight_norm, unfold_weight_norm
from .config import VoxCPM2Config
from .locdit import FlowMatching
from .minicpm import build_tables, fuse
from .model import VoxCPM2Talker

MODEL_FILE = "model.safetensors"
VAE_FILES = ("audiovae.safetensors", "audiovae.pth")
DIFFUSION = "feat_decoder"
"""The part of the talker that may run in a stage of its own."""


def load_talker(
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    length: int | None = None,
    fused: bool = True,
    with_diffusion: bool = True,
) -> VoxCPM2Talker:
    """The talker of a checkpoint, ready to run.

    Args:
        folder: the checkpoint's folder.
        device: where the weights go.
        dtype: of the weights; the checkpoint's own ``dtype`` when None.
        length: positions that a stream may have; the checkpoint's ``max_length`` when None.
        fused: join projections that read the same input. Without it ``state_dict()`` has the checkpoint's names.
        with_diffusion: without it the local DiT stays on the meta device, for another process has it.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the configuration or a tensor does not fit.
    """
    model, tensors = _checked(folder, length)
    for name, part in model.named_children():
        if with_diffusion or name != DIFFUSION:
            _fill(part, name, tensors, torch.device(device), dtype or getattr(torch, model.config.dtype), fused=fused)
    return model.eval().requires_grad_(False)


def load_diffusion(
    folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> FlowMatching:
    """The local DiT with its solver alone.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the configuration or a tensor of the talker does not fit.
    """
    model, tensors = _checked(folder, None)
    solver = model.feat_decoder
    _fill(solver, DIFFUSION, tensors, torch.device(device), dtype or getattr(torch, model.config.dtype), fused=True)
    return solver.eval().requires_grad_(False)


def _checked(folder: Path, length: int | None) -> tuple[VoxCPM2Talker, dict[str, Tensor]]:
    """The talker on the meta device, and the tensors of its file, which fit it."""
    with shapes_only():
        model = VoxCPM2Talker(VoxCPM2Config.from_checkpoint(folder), length=length)
    tensors = _read_safetensors(folder / MODEL_FILE)
    _check(shapes_of(model), tensors, folder / MODEL_FILE)
    return model, tensors


def _fill(
    part: nn.Module,
    prefix: str,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype,
    *,
    fused: bool,
) -> None:
    """Gives a part of the talker its weights, and recomputes what a checkpoint does not hold."""
    names = part.state_dict()
    part.load_state_dict({name: tensors[f"{prefix}.{name}"].to(device, dtype) for name in names}, assign=True)
    build_tables(part, device)
    if fused:
        fuse(part)


def load_audio_vae(folder: Path, *, device: torch.device | str = "cpu") -> AudioVAE:
    """The AudioVAE of a checkpoint in fp32, weight norm folded.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the configuration or a tensor does not fit.
    """
    config = VoxCPM2Config.from_checkpoint(folder).audio_vae_config
    path = next((folder / name for name in VAE_FILES if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"checkpoint {folder.name!r} has neither {' nor '.join(VAE_FILES)}")
    tensors = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    _check(checkpoint_tensors(config), tensors, path)
    vae = AudioVAE(config)
    folded = fold_weight_norm({name: t.float() if t.is_floating_point() else t for name, t in tensors.items()})
    vae.load_state_dict(folded)
    return vae.to(device).eval().requires_grad_(False)


def save_checkpoint(folder: Path, config_json: str, talker: VoxCPM2Talker, vae: AudioVAE) -> None:
    """Writes a checkpoint that upstream's package reads too. The talker must not be fused."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config_json, encoding="utf-8")
    save_file({name: t.contiguous() for name, t in talker.state_dict().items()}, folder / MODEL_FILE)
    torch.save({"state_dict": unfold_weight_norm(vae.state_dict(), vae)}, folder / "audiovae.pth")


def _check(expected: Shapes, tensors: Mapping[str, Tensor], path: Path) -> None:
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    check_tensors(expected, found, f"{path.name} of checkpoint {path.parent.name!r}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {path.parent.name!r} has no {path.name}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path.name} of checkpoint {path.parent.name!r} is damaged: {error}") from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointError(
            f"{path.name} of checkpoint {path.parent.name!r} is damaged or holds more than tensors"
        ) from error
    tensors = loaded.get("state_dict", loaded) if isinstance(loaded, Mapping) else None
    if not isinstance(tensors, Mapping):
        raise CheckpointError(f"{path.name} of checkpoint {path.parent.name!r} holds no tensors by name")
    return {str(name): t for name, t in tensors.items() if isinstance(t, Tensor)}
