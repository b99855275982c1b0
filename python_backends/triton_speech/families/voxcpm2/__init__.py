"""VoxCPM2: a language model with local diffusion in its loop, and AudioVAE V2 as its codec (seed 000).

Everything that needs torch is imported where it is used, so that the text side stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..facts import TalkerFacts
from .config import ARCHITECTURE, VoxCPM2Config
from .frontend import CFG_VALUE, INFERENCE_STEPS, SAMPLING_INPUTS, FrontendParameters, VoxCPM2Frontend
from .voice import VOICE_MODES

if TYPE_CHECKING:
    from torch import Tensor

    from ..portable import PortableGraph
    from ..protocol import Diffuse
    from .codec import VoxCPM2Codec
    from .diffusion import VoxCPM2Diffusion
    from .onnx_codec import OnnxCodec
    from .prompt import Prompt
    from .reference import ReferenceEncoder
    from .talker import Sampling, SlotTalker

__all__ = [
    "ARCHITECTURE",
    "MOST_VOICES",
    "SAMPLING_INPUTS",
    "VOICE_MODES",
    "WARM_UP_TOKENS",
    "FrontendParameters",
    "load_codec",
    "load_diffusion",
    "load_frontend",
    "load_onnx_codec",
    "load_onnx_diffusion",
    "load_reference_encoder",
    "load_talker",
    "make_prompt",
    "make_sampling",
    "portable_graphs",
    "priming_patches",
    "talker_facts",
]

MOST_VOICES = 1
WARM_UP_TOKENS = (1,) * 16


def load_frontend(folder: Path, parameters: FrontendParameters) -> VoxCPM2Frontend:
    """Text in, tokens and limits out."""
    return VoxCPM2Frontend.from_checkpoint(folder, parameters)


def load_reference_encoder(folder: Path, *, device: str = "cpu") -> ReferenceEncoder:
    """Audio in, latent patches out."""
    from .reference import ReferenceEncoder

    return ReferenceEncoder.from_checkpoint(folder, device=device)


def talker_facts(folder: Path) -> TalkerFacts:
    """What an engine must know before it loads the talker."""
    return VoxCPM2Config.from_checkpoint(folder).talker_facts


def load_talker(
    folder: Path,
    *,
    slots: int,
    device: str,
    dtype: str | None,
    length: int | None,
    cfg_cutoff_ratio: float = 1.0,
    diffuse: Diffuse | None = None,
) -> SlotTalker:
    """Tokens in, latent patches out, one step at a time. Guided up to ``cfg_cutoff_ratio`` of the diffusion steps.

    With ``diffuse`` patches are made there, and nothing of the local DiT is loaded here.
    """
    import torch

    from .checkpoint import load_talker as load
    from .talker import SlotTalker

    kind = getattr(torch, dtype) if dtype else None
    model = load(folder, device=device, dtype=kind, length=length, with_diffusion=diffuse is None)
    model.feat_decoder.cutoff_ratio = cfg_cutoff_ratio
    return SlotTalker(model, slots, diffuse)


def load_diffusion(
    folder: Path, *, device: str, dtype: str | None, cfg_cutoff_ratio: float = 1.0, graphs: int = 0
) -> VoxCPM2Diffusion:
    """The local DiT alone, for a stage of its own. Guided up to ``cfg_cutoff_ratio`` of the diffusion steps; on a GPU,
    batches of up to ``graphs`` rows run as CUDA graphs."""
    import torch

    from ..recorder import cuda_recorder
    from .checkpoint import load_diffusion as load
    from .diffusion import VoxCPM2Diffusion

    config = VoxCPM2Config.from_checkpoint(folder)
    solver = load(folder, device=device, dtype=getattr(torch, dtype) if dtype else None)
    solver.cutoff_ratio = cfg_cutoff_ratio
    weight, mu_size = solver.estimator.in_proj.weight, solver.estimator.mu_tokens * solver.estimator.size
    diffusion = VoxCPM2Diffusion(solver, (config.patch_size, config.feat_dim), mu_size, weight.device, weight.dtype)
    if graphs and weight.device.type == "cuda":
        diffusion.capture(graphs, cuda_recorder(weight.device))
    return diffusion


def load_onnx_diffusion(
    folder: Path, graphs: Path, *, device: str = "cpu", cfg_cutoff_ratio: float = 1.0
) -> VoxCPM2Diffusion:
    """The same from the graph that was exported into ``graphs``, on ONNX Runtime, in fp32."""
    import torch

    from .diffusion import VoxCPM2Diffusion
    from .onnx_solver import OnnxFlowMatching

    config = VoxCPM2Config.from_checkpoint(folder)
    solver = OnnxFlowMatching.from_checkpoint(folder, graphs, device=device)
    solver.cutoff_ratio = cfg_cutoff_ratio
    patch_shape = config.patch_size, config.feat_dim
    return VoxCPM2Diffusion(solver, patch_shape, solver.mu_size, torch.device(device), torch.float32)


def load_codec(folder: Path, *, slots: int, device: str = "cpu", **batches: Any) -> VoxCPM2Codec:
    """Latent patches in, audio out, for many streams at once."""
    from .codec import VoxCPM2Codec

    return VoxCPM2Codec.from_checkpoint(folder, slots=slots, device=device, **batches)


def load_onnx_codec(folder: Path, graphs: Path, *, slots: int, device: str = "cpu", tf32: bool = False) -> OnnxCodec:
    """The codec from the graph that was exported into ``graphs``, on ONNX Runtime."""
    from .onnx_codec import OnnxCodec

    return OnnxCodec(folder, graphs, slots=slots, device=device, tf32=tf32)


def portable_graphs(part: str, folder: Path, *, steps: int) -> list[PortableGraph]:
    """What can be exported of a part: ``codec``, ``dit`` (up to ``steps`` diffusion steps) or ``reference``."""
    from .portable import GRAPHS

    return GRAPHS[part](folder, steps)


def make_prompt(tokens: list[int], reference: Tensor | None, prompt: Tensor | None) -> Prompt:
    """What a stream starts from; latents (N, P, D) or None."""
    from .prompt import Prompt

    return Prompt(tokens, reference, prompt)


def make_sampling(seed: int, values: Mapping[str, Any]) -> Sampling:
    """Reads the sampling fields that the frontend sends along; what is absent takes the family's default."""
    from .talker import Sampling

    return Sampling(
        seed=seed,
        cfg_value=float(values.get(CFG_VALUE.name, CFG_VALUE.default)),
        inference_steps=int(values.get(INFERENCE_STEPS.name, INFERENCE_STEPS.default)),
    )


def priming_patches(prompt: Prompt) -> Tensor | None:
    """Patches (N, P, D) that the codec hears before a continuation, so that its first sample has a past."""
    from .prompt import priming_patches as priming

    return priming(prompt)
