"""Qwen3-TTS at 12 Hz: a language model over frames of 16 codes, a code predictor in its loop, and a causal codec.

Everything that needs torch is imported where it is used, so that the text side stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import invalid
from ..facts import TalkerFacts
from .config import ARCHITECTURE, Qwen3TTSConfig
from .frontend import FrontendParameters, Qwen3TTSFrontend
from .prompt import Words
from .settings import SAMPLING_INPUTS, Sampling
from .settings import make_sampling as _make_sampling
from .voice import VOICE_MODES

if TYPE_CHECKING:
    from torch import Tensor

    from .codec import Qwen3TTSCodec
    from .prompt import Prompt
    from .reference import NoRecordings, ReferenceEncoder
    from .talker import SlotTalker

__all__ = [
    "ARCHITECTURE",
    "MOST_VOICES",
    "SAMPLING_INPUTS",
    "VOICE_MODES",
    "WARM_UP_TOKENS",
    "FrontendParameters",
    "load_codec",
    "load_frontend",
    "load_reference_encoder",
    "load_talker",
    "make_prompt",
    "make_sampling",
    "priming_patches",
    "talker_facts",
]

MOST_VOICES = 1
WARM_UP_TOKENS = Words(role=(1, 1, 1), text=(1,) * 8).pack()


def load_frontend(folder: Path, parameters: FrontendParameters) -> Qwen3TTSFrontend:
    """Text in, tokens and limits out."""
    return Qwen3TTSFrontend.from_checkpoint(folder, parameters)


def load_reference_encoder(folder: Path, *, device: str = "cpu") -> ReferenceEncoder | NoRecordings:
    """Audio in, a speaker's vector and codes out; models of other kinds than Base refuse it."""
    from .reference import NoRecordings, ReferenceEncoder

    config = Qwen3TTSConfig.from_checkpoint(folder)
    if config.tts_model_type != "base":
        return NoRecordings(config)
    return ReferenceEncoder.from_checkpoint(folder, device=device)


def talker_facts(folder: Path) -> TalkerFacts:
    """What an engine must know before it loads the talker."""
    return Qwen3TTSConfig.from_checkpoint(folder).talker_facts


def load_talker(folder: Path, *, slots: int, device: str, dtype: str | None, length: int | None) -> SlotTalker:
    """Tokens in, frames of codes out, one step at a time."""
    import torch

    from .checkpoint import load_talker as load
    from .talker import SlotTalker

    model = load(folder, device=device, dtype=getattr(torch, dtype) if dtype else None, length=length)
    return SlotTalker(model, Qwen3TTSConfig.from_checkpoint(folder), slots)


def load_codec(folder: Path, *, slots: int, device: str = "cpu", **batches: Any) -> Qwen3TTSCodec:
    """Frames of codes in, audio out, for many streams at once."""
    from .codec import Qwen3TTSCodec

    return Qwen3TTSCodec.from_checkpoint(folder, slots=slots, device=device, **batches)


def make_prompt(tokens: list[int], reference: Tensor | None, prompt: Tensor | None) -> Prompt:
    """What a stream starts from.

    Args:
        tokens: packed by the frontend.
        reference: rows (n, 1, G) of a speaker's vector, or None; see ``voice``.
        prompt: rows of the vector, then of the codes, of the recording that is continued, or None.

    Raises:
        SpeechError: INVALID_ARG where they do not fit each other.
    """
    from .prompt import Prompt

    try:
        words = Words.unpack(tokens)
    except ValueError as error:
        raise invalid("TOKENS", str(error)) from error
    vector, codes = None, None
    if prompt is not None:
        rows = words.vector_size // prompt.shape[-1]
        vector, codes = prompt[:rows].flatten(), prompt[rows:, 0].long()
        if len(codes) == 0:
            raise invalid("PROMPT_LATENTS", f"has {len(prompt)} rows, must have more than the {rows} of its vector")
    if reference is not None:
        vector = reference.flatten()
        if len(vector) != words.vector_size:
            raise invalid("REFERENCE_LATENTS", f"holds {len(vector)} values, must hold {words.vector_size}")
    if (codes is None) != (words.reference_text is None):
        raise invalid("PROMPT_LATENTS", "and the text of its recording need each other; one of them is missing")
    return Prompt(words, vector, codes)


def make_sampling(seed: int, values: Mapping[str, Any]) -> Sampling:
    """Reads the sampling fields that the frontend sends along; what is absent takes the family's default."""
    return _make_sampling(seed, values)


def priming_patches(prompt: Prompt) -> Tensor | None:
    """Frames (T, 1, G) that the codec hears before a continuation, all of the recording; None without one."""
    codes = prompt.reference_codes
    return None if codes is None else codes.float().unsqueeze(1)
