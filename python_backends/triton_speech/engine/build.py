"""Chooses and builds an engine with its talker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..families.protocol import TalkerModel
from ..families.registry import load_family
from .api import EngineOptions
from .runner import Engine

INSTALL_VLLM = "the engine 'vllm' needs vLLM, which is not installed: pip install 'triton-speech[vllm]'"


@dataclass(frozen=True)
class EngineChoice:
    """Which engine, and where.

    Attributes:
        kind: ``torch`` or ``vllm``.
        device: torch device.
        dtype: of weights and cache; None takes float32 on the CPU and the checkpoint's own elsewhere.
        length: positions that a stream may have; None takes the checkpoint's.
        most: the ``Sampling.batch_key`` that a vLLM engine's graphs are made for; larger ones are refused.
        kv_cache_bytes: vLLM's memory for keys and values; 0 leaves it to vLLM.
        graphs: vLLM captures its decode steps as CUDA graphs.
    """

    kind: str = "torch"
    device: str = "cpu"
    dtype: str | None = None
    length: int | None = None
    most: Any = 10
    kv_cache_bytes: int = 0
    graphs: bool = True


def build_engine(
    choice: EngineChoice, options: EngineOptions, family: str, checkpoint: Path
) -> tuple[Engine, TalkerModel]:
    """An engine that is loaded, and its talker.

    Raises:
        ValueError: the engine's library is not installed, or the checkpoint does not fit.
    """
    dtype = choice.dtype or ("float32" if choice.device == "cpu" else None)
    if choice.kind == "vllm":
        try:
            from .vllm.engine import VllmEngine
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "vllm":
                raise
            raise ValueError(INSTALL_VLLM) from error
        engine = VllmEngine(choice, options, family, checkpoint, dtype)
        return engine, engine.talker
    from .slots import slots_needed
    from .torch_engine import TorchEngine

    talker = load_family(family).load_talker(
        checkpoint, slots=slots_needed(options), device=choice.device, dtype=dtype, length=choice.length
    )
    return TorchEngine(talker, options), talker
