"""Chooses and builds an engine with its talker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..families.protocol import Diffuse, TalkerModel
from ..families.registry import load_family
from .api import EngineOptions
from .runner import Engine

DIFFUSION_IS_CAPTURED = (
    "the engine 'vllm' captures the diffusion in its graphs, so it cannot run in a stage of its own: "
    "set engine to 'torch', or diffusion to 'inline'"
)
INSTALL_VLLM = "the engine 'vllm' needs vLLM, which is not installed: pip install 'triton-speech[vllm]'"


@dataclass(frozen=True)
class EngineChoice:
    """Which engine, and where.

    Attributes:
        kind: ``torch`` or ``vllm``.
        device: torch device.
        dtype: of weights and cache; None takes float32 on the CPU and the checkpoint's own elsewhere.
        length: positions that a stream may have; None takes the checkpoint's.
        most: the ``Sampling.batch_key`` that graphs are made for, or that ``diffuse`` takes. Larger ones are refused by
            vLLM and where there is ``diffuse``; torch runs them without graphs.
        kv_cache_bytes: vLLM's memory for keys and values; 0 takes what all streams need, at most half of what is free.
        graphs: decode steps are captured as CUDA graphs: by vLLM, and by torch for talkers whose steps can be.
        talker_options: what the family's ``load_talker`` is given besides.
        diffuse: makes the patches of all streams of a step, in another process; the talker itself by default.
    """

    kind: str = "torch"
    device: str = "cpu"
    dtype: str | None = None
    length: int | None = None
    most: Any = 10
    kv_cache_bytes: int = 0
    graphs: bool = True
    talker_options: Mapping[str, Any] = field(default_factory=dict)
    diffuse: Diffuse | None = None


def build_engine(
    choice: EngineChoice, options: EngineOptions, family: str, checkpoint: Path
) -> tuple[Engine, TalkerModel]:
    """An engine that is loaded, and its talker.

    Raises:
        ValueError: the engine's library is not installed, it cannot run so, or the checkpoint does not fit.
    """
    dtype = choice.dtype or ("float32" if choice.device == "cpu" else None)
    if choice.kind == "vllm":
        if choice.diffuse is not None:
            raise ValueError(DIFFUSION_IS_CAPTURED)
        try:
            from .vllm.engine import VllmEngine
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "vllm":
                raise
            raise ValueError(INSTALL_VLLM) from error
        engine = VllmEngine(choice, options, family, checkpoint, dtype)
        return engine, engine.talker
    import torch

    from .slots import slots_needed
    from .torch_engine import TorchEngine

    talker = load_family(family).load_talker(
        checkpoint,
        slots=slots_needed(options),
        device=choice.device,
        dtype=dtype,
        length=choice.length,
        **choice.talker_options,
        **({} if choice.diffuse is None else {"diffuse": choice.diffuse}),
    )
    on_gpu = choice.graphs and torch.device(choice.device).type == "cuda"
    mixes_up_to = None if choice.diffuse is None else choice.most
    return TorchEngine(talker, options, graphs=choice.most if on_gpu else None, mixes_up_to=mixes_up_to), talker
