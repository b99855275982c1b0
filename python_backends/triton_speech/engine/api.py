"""What goes into a talker engine and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..errors import SpeechError
from ..families.protocol import Prompt, Sampling
from ..request import NORMAL

FinishReason = Literal["", "stop", "length", "cancelled"]


@dataclass(frozen=True)
class TalkerRequest:
    """One stream.

    Attributes:
        max_frames: patches that it may make at most.
        priority: when slots are short, the higher ones go first; ``CONTINUES`` is never refused because the queue is
            full.
        deadline: on the monotonic clock, in seconds; a stream that has not ended by then is ended. None for never.
        seconds: from which its deadline was made, for the text of its error.
    """

    stream: str
    prompt: Prompt
    sampling: Sampling
    max_frames: int
    priority: int = NORMAL
    deadline: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Frame:
    """One step of one stream: a patch (P, D) fp32 on the CPU that owns its storage, an end, or both."""

    stream: str
    patch: Tensor | None = None
    finish: FinishReason = ""
    error: SpeechError | None = None

    @property
    def is_last(self) -> bool:
        return bool(self.finish) or self.error is not None


@dataclass(frozen=True)
class EngineOptions:
    """Limits of an engine.

    Attributes:
        max_num_seqs: streams that run at once.
        max_waiting: streams that may wait for a slot; one more is refused.
        prefill_chunk: prompt positions run at once for one stream. Never depends on the load, so that a prompt's
            products have the same shapes alone and in company.
        prefill_budget: prompt positions run between two decode steps, which bounds what an arrival costs the others.
        deterministic: every decode step has the same shape, whatever runs, so that a seed gives the same bytes.
    """

    max_num_seqs: int = 8
    max_waiting: int = 64
    prefill_chunk: int = 128
    prefill_budget: int = 256
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "prefill_chunk", "prefill_budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting is {self.max_waiting}, must not be negative")
