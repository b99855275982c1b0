"""The codec on ONNX Runtime: what `codec` does with torch, from the exported step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..graph_use import GraphUse
from ..onnx_session import OnnxSession, graph_path
from .config import VoxCPM2Config
from .portable import CODEC_STEP, vae_digest
from .streaming_decoder import DecoderState


class Decoded(NamedTuple):
    """Samples (B, N) fp32 that are there already."""

    samples: Tensor

    def result(self) -> Tensor:
        return self.samples


class OnnxCodec:
    """Decoder state for ``slots`` streams, and batches over any of them. For one thread at a time.

    The state lies in slots as in `VoxCPM2Codec`; each batch's rows go into the graph and come out of it. A batch is
    done when ``launch`` returns, also on a GPU, and there are no CUDA graphs.

    Args:
        folder: the checkpoint.
        graphs: what ``triton-speech export codec --onnx`` wrote.
        device: as torch names it.
        tf32: on a GPU, multiply fp32 with 10-bit fractions.

    Raises:
        ModuleNotFoundError: ONNX Runtime is not installed.
        ValueError: there is no graph, or it was made of another checkpoint.
    """

    def __init__(self, folder: Path, graphs: Path, *, slots: int, device: str = "cpu", tf32: bool = False) -> None:
        config = VoxCPM2Config.from_checkpoint(folder)
        vae = config.audio_vae_config
        self._session = open_graph(folder, graphs, CODEC_STEP, "codec", vae_digest(folder), device=device, tf32=tf32)
        self._device = torch.device(device)
        floats = self._session.width("STATE")
        self._state = DecoderState(torch.zeros(slots, floats, device=self._device))
        self.patch_shape = (config.patch_size, config.feat_dim)
        self.sample_rate = vae.out_sample_rate
        self.samples_per_patch = config.patch_size * math.prod(vae.decoder_rates)
        self.graph_use = GraphUse()

    def reset(self, slot: int) -> None:
        """A new stream begins in ``slot``."""
        self._state.rows[slot] = 0.0

    @torch.inference_mode()
    def launch(self, patches: Tensor, slots: Sequence[int]) -> Decoded:
        """Decodes the next patches (B, T, P, D) fp32 of the streams in ``slots`` (B distinct)."""
        where = torch.tensor(slots, device=self._device)
        rows = self._state.rows[where]
        following = torch.empty_like(rows)
        audio = torch.empty(len(slots), patches.shape[1] * self.samples_per_patch, device=self._device)
        latents = patches.to(self._device).contiguous()
        self._session.run({"LATENTS": latents, "STATE": rows}, {"AUDIO": audio, "NEXT_STATE": following})
        self._state.rows.index_copy_(0, where, following)
        return Decoded(audio.cpu())

    def decode(self, patches: Tensor, slots: Sequence[int]) -> Tensor:
        """The next patches (B, T, P, D) fp32 of the streams in ``slots`` (B distinct) -> samples (B, N) fp32."""
        return self.launch(patches, slots).result()


def open_graph(
    folder: Path, graphs: Path, name: str, part: str, source: str, *, device: str, tf32: bool = False
) -> OnnxSession:
    """A graph that was exported from the checkpoint in ``folder``, whose digest is ``source``.

    Raises:
        ModuleNotFoundError: ONNX Runtime is not installed.
        ValueError: there is none, or it was made of another checkpoint; names the command that makes one.
    """
    path = graph_path(graphs, name)
    command = f"triton-speech export {part} --checkpoint {folder.name} --onnx DIR"
    if not path.is_file():
        raise ValueError(
            f"there is no graph {name} for checkpoint {folder.name!r} where it should be; make it: {command}"
        )
    session = OnnxSession(path, device=device, tf32=tf32)
    if session.source != source:
        raise ValueError(
            f"graph {name} was not made of checkpoint {folder.name!r} as it is now; make it anew: {command}"
        )
    return session
