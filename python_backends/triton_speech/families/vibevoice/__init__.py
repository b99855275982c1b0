"""VibeVoice: a Qwen2 language model over frames of 133 ms, a diffusion head in its loop, and ears for what it says.

Everything that needs torch is imported where it is used, so that the text side stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import invalid
from ..facts import TalkerFacts
from .config import ARCHITECTURE, VibeVoiceConfig
from .frontend import VOICE_MODES, FrontendParameters, VibeVoiceFrontend
from .prompt import Prompt, Words
from .script import MOST_SPEAKERS
from .settings import SAMPLING_INPUTS, Sampling
from .settings import make_sampling as _make_sampling

if TYPE_CHECKING:
    from torch import Tensor

    from .codec import VibeVoiceCodec
    from .reference import ReferenceEncoder
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

MOST_VOICES = MOST_SPEAKERS
WARM_UP_TOKENS = Words(tokens=(1,) * 8, section=(0, 0), vocabulary=2).pack()


def load_frontend(folder: Path, parameters: FrontendParameters) -> VibeVoiceFrontend:
    """A script in, tokens and limits out."""
    return VibeVoiceFrontend.from_checkpoint(folder, parameters)


def load_reference_encoder(folder: Path, *, device: str = "cpu") -> ReferenceEncoder:
    """Audio of a voice in, features out."""
    from .reference import ReferenceEncoder

    return ReferenceEncoder.from_checkpoint(folder, device=device)


def talker_facts(folder: Path) -> TalkerFacts:
    """What an engine must know before it loads the talker."""
    return VibeVoiceConfig.from_checkpoint(folder).talker_facts


def load_talker(folder: Path, *, slots: int, device: str, dtype: str | None, length: int | None) -> SlotTalker:
    """Tokens in, frames of samples out, one step at a time."""
    import torch

    from .checkpoint import load_speaker
    from .talker import SlotTalker
    from .tokenizer import read_controls

    whole = load_speaker(folder, device=device, dtype=getattr(torch, dtype) if dtype else None, length=length)
    return SlotTalker(whole, read_controls(folder, whole.model.config.decoder_config.vocab_size), slots)


def load_codec(folder: Path, *, slots: int, device: str = "cpu", **batches: Any) -> VibeVoiceCodec:
    """Frames of samples in, audio out."""
    from .codec import VibeVoiceCodec

    return VibeVoiceCodec(VibeVoiceConfig.from_checkpoint(folder))


def make_prompt(tokens: list[int], reference: Tensor | None, prompt: Tensor | None) -> Prompt:
    """What a stream starts from.

    Args:
        tokens: packed by the frontend.
        reference: rows (n, 1, 1 + D) of voice samples, each with the number of its voice first, or None.
        prompt: of a recording that is to be continued, which this model cannot.

    Raises:
        SpeechError: INVALID_ARG where they do not fit each other.
    """
    if prompt is not None:
        raise invalid("PROMPT_LATENTS", "are not followed by this model; give the recording as a voice sample")
    return Words.unpack(tokens).with_voices(None if reference is None else reference[:, 0])


def make_sampling(seed: int, values: Mapping[str, Any]) -> Sampling:
    """Reads the sampling fields that the frontend sends along; what is absent takes the family's default."""
    return _make_sampling(seed, values)


def priming_patches(prompt: Prompt) -> Tensor | None:
    """Nothing is heard before a stream."""
    return None
