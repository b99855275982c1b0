"""The graphs of VoxCPM2 by part: codec, dit, reference."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ..portable import PATCHES, Port, PortableGraph, integers, uniform
from . import ops
from .checkpoint import MODEL_FILE, VAE_FILES, load_audio_vae
from .config import VoxCPM2Config
from .frontend import CFG_VALUE, INFERENCE_STEPS
from .locdit import FlowMatching
from .portable_codec import CodecDecode, CodecStep, ReferenceEncode
from .portable_dit import PREFIX, DitRound, DitSolver, load_solver
from .reference import ReferenceEncoder
from .streaming_decoder import StreamingDecoder

CODEC_STEP = "voxcpm2_codec_step"
CODEC_DECODE = "voxcpm2_codec_decode"
DIT_ROUND = "voxcpm2_dit_round"
DIT_SOLVER = "voxcpm2_dit_solver"
REFERENCE_ENCODER = "voxcpm2_reference_encoder"
NAMES = (CODEC_STEP, CODEC_DECODE, DIT_ROUND, DIT_SOLVER, REFERENCE_ENCODER)
MAX_STREAMS = 64
STEP_PATCHES = 8
"""Patches in one step of the codec, as the stage takes them."""
WHOLE_PATCHES = 128


def codec_graphs(folder: Path, _steps: int) -> list[PortableGraph]:
    """The decoder's step, with the stream's state as a tensor in and out, and a whole utterance without state."""
    config, vae = VoxCPM2Config.from_checkpoint(folder), load_audio_vae(folder)
    decoder, step = StreamingDecoder(vae), CodecStep(vae)

    def stepped(latents: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        rows = state.clone()
        return decoder.step(latents.flatten(1, 2).transpose(1, 2), rows), rows

    def whole(latents: Tensor) -> tuple[Tensor]:
        return (vae.decode(latents.flatten(1, 2).transpose(1, 2)),)

    latents = Port("LATENTS", (PATCHES, config.patch_size, config.feat_dim))
    audio, floats = Port("AUDIO", ("samples",)), (step.floats,)
    return [
        PortableGraph(
            name=CODEC_STEP,
            module=step,
            torch=stepped,
            inputs=(latents, Port("STATE", floats)),
            outputs=(audio, Port("NEXT_STATE", floats)),
            source=vae_digest(folder),
            max_batch=MAX_STREAMS,
            max_patches=STEP_PATCHES,
            state=("STATE", "NEXT_STATE"),
        ),
        PortableGraph(
            name=CODEC_DECODE,
            module=CodecDecode(vae),
            torch=whole,
            inputs=(latents,),
            outputs=(audio,),
            source=vae_digest(folder),
            max_batch=8,
            max_patches=WHOLE_PATCHES,
        ),
    ]


def reference_graphs(folder: Path, _steps: int) -> list[PortableGraph]:
    """Recordings in whole patches to latents; what pads them, and on which side, is their sender's choice."""
    config, vae = VoxCPM2Config.from_checkpoint(folder), load_audio_vae(folder)
    samples = config.patch_size * vae.encoder_hop
    encoder = ReferenceEncoder(vae, config)

    def encoded(audio: Tensor) -> tuple[Tensor]:
        return (torch.stack([torch.from_numpy(encoder.encode(one.flatten().numpy(), "reference")) for one in audio]),)

    return [
        PortableGraph(
            name=REFERENCE_ENCODER,
            module=ReferenceEncode(vae, config.patch_size),
            torch=encoded,
            inputs=(Port("AUDIO", (PATCHES, samples), draw=uniform(-0.5, 0.5)),),
            outputs=(Port("LATENTS", (PATCHES, config.patch_size, config.feat_dim)),),
            source=vae_digest(folder),
            max_batch=8,
            max_patches=WHOLE_PATCHES,
        )
    ]


def dit_graphs(folder: Path, steps: int) -> list[PortableGraph]:
    """One round of the solver for any number of steps, and the solver for up to ``steps``.

    Raises:
        SpeechError: ``steps`` is out of range.
    """
    INFERENCE_STEPS.check(steps)
    config, solver = VoxCPM2Config.from_checkpoint(folder), load_solver(folder)
    patch = (config.patch_size, config.feat_dim)
    mu = Port("MU", (solver.estimator.mu_tokens * solver.estimator.size,))
    cfg_value = Port(CFG_VALUE.name, (1,), draw=uniform(0.0, 4.0))
    count = Port(INFERENCE_STEPS.name, (1,), torch.int32, integers(2, steps))
    source = dit_digest(folder)
    return [
        PortableGraph(
            name=DIT_ROUND,
            module=DitRound(solver),
            torch=lambda *inputs: (_one_round(solver, *inputs),),
            inputs=(
                Port("X", patch),
                mu,
                Port("COND", patch),
                Port("TIME", (1,), draw=uniform(0.0, 1.0)),
                Port("WIDTH", (1,), draw=uniform(0.0, 0.2)),
                cfg_value,
            ),
            outputs=(Port("NEXT_X", patch),),
            source=source,
            max_batch=MAX_STREAMS,
        ),
        PortableGraph(
            name=DIT_SOLVER,
            module=DitSolver(solver, steps),
            torch=lambda noise, mu, cond, cfg, counts: (
                solver.solve(noise, mu, cond, cfg[:, 0], counts[:, 0].long(), steps),
            ),
            inputs=(Port("NOISE", patch), mu, Port("COND", patch), cfg_value, count),
            outputs=(Port("LATENT", patch),),
            source=source,
            max_batch=MAX_STREAMS,
        ),
    ]


GRAPHS: dict[str, Callable[[Path, int], list[PortableGraph]]] = {
    "codec": codec_graphs,
    "dit": dit_graphs,
    "reference": reference_graphs,
}


def _one_round(
    solver: FlowMatching, x: Tensor, mu: Tensor, cond: Tensor, time: Tensor, width: Tensor, cfg_value: Tensor
) -> Tensor:
    """A round as ``FlowMatching.solve`` runs it."""
    estimator = solver.estimator
    delta = width if solver.mean_mode else torch.zeros_like(width)
    sequence = estimator.lay_out(mu, ops.linear(cond, estimator.cond_proj))
    estimator.place(sequence, x, estimator.embed_time(time[:, 0], delta[:, 0]))
    return estimator.advance(sequence, estimator.velocity(sequence), x, cfg_value[:, 0], width[:, 0], None)


def vae_digest(folder: Path) -> str:
    """Of all that decides what the AudioVAE of a checkpoint computes: a graph of another one has another digest."""
    digest = hashlib.sha256(VoxCPM2Config.from_checkpoint(folder).model_dump_json().encode())
    path = next(folder / name for name in VAE_FILES if (folder / name).is_file())
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def dit_digest(folder: Path) -> str:
    """The same of the diffusion transformer."""
    digest = hashlib.sha256(VoxCPM2Config.from_checkpoint(folder).model_dump_json().encode())
    with safe_open(folder / MODEL_FILE, framework="pt") as file:
        for name in sorted(file.keys()):
            if name.startswith(PREFIX):
                digest.update(name.encode())
                digest.update(file.get_tensor(name).contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
