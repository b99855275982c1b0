"""What a stream of the talker is asked to be: its request's tensors, checked."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch

from ..engine.api import TalkerRequest
from ..errors import invalid
from ..families.protocol import TalkerModel
from ..families.registry import Family
from ..request import CONTINUES, NORMAL, read_schedule
from ..streaming.schedule import ChunkSchedule
from .triton import Array, read_number


def read_request(
    stream: str, inputs: Mapping[str, Array], family: Family, talker: TalkerModel, seconds: float | None
) -> TalkerRequest:
    """A stream for the engine; it has ``seconds`` to end, None for ever.

    Raises:
        SpeechError: INVALID_ARG, naming the input that is wrong.
    """
    prompt = family.make_prompt(
        _tokens(inputs, talker.vocabulary),
        _latents(inputs, "REFERENCE_LATENTS", talker.voice_shape),
        _latents(inputs, "PROMPT_LATENTS", talker.voice_shape),
    )
    sampling = {name: read_number(inputs, name) for name in family.SAMPLING_INPUTS}
    seed = int(read_number(inputs, "SEED"))
    max_frames = int(read_number(inputs, "MAX_FRAMES"))
    if max_frames < 1:
        raise invalid("MAX_FRAMES", f"is {max_frames}, must be at least 1")
    priority = int(read_number(inputs, "PRIORITY")) if "PRIORITY" in inputs else NORMAL
    if not NORMAL <= priority <= CONTINUES:
        raise invalid("PRIORITY", f"is {priority}, must be {NORMAL} to {CONTINUES}")
    return TalkerRequest(
        stream,
        prompt,
        family.make_sampling(seed, sampling),
        max_frames,
        priority,
        None if seconds is None else time.monotonic() + seconds,
        seconds or 0.0,
    )


def chunk_schedule(inputs: Mapping[str, Array], usual: ChunkSchedule) -> ChunkSchedule:
    """The request's own, or the usual one where that is absent or empty."""
    if "CHUNK_SCHEDULE" not in inputs or inputs["CHUNK_SCHEDULE"].size == 0:
        return usual
    return read_schedule("CHUNK_SCHEDULE", inputs) or usual


def _tokens(inputs: Mapping[str, Array], vocabulary: int) -> list[int]:
    tokens = inputs.get("TOKENS")
    if tokens is None or tokens.size == 0:
        raise invalid("TOKENS", "is missing or empty")
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise invalid("TOKENS", f"holds ids outside 0 to {vocabulary - 1}")
    return [int(token) for token in tokens]


def _latents(inputs: Mapping[str, Array], name: str, voice_shape: tuple[int, int]) -> torch.Tensor | None:
    array = inputs.get(name)
    if array is None or array.shape[0] == 0:
        return None
    if array.shape[1:] != voice_shape:
        patch, dims = voice_shape
        raise invalid(name, f"has shape {list(array.shape)}, must be [n, {patch}, {dims}]")
    if not np.isfinite(array).all():
        raise invalid(name, "holds NaN or infinite values")
    return torch.from_numpy(np.array(array, dtype=np.float32))
