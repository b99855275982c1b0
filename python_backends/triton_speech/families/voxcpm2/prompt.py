"""Lays text, reference and prompt audio out in the order the model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .tokenizer import AUDIO_START, REF_AUDIO_END, REF_AUDIO_START

PRIMING_PATCHES = 3
"""Patches of a prompt that the codec hears before the first new one (upstream)."""


@dataclass(frozen=True)
class Prompt:
    """What a stream starts from.

    Four modes follow from what is given: zero-shot (neither), reference (timbre only), continuation (prompt audio,
    whose transcript leads ``tokens``), and both.
    """

    tokens: Sequence[int]
    reference: Tensor | None = None
    """(N, P, D) latent patches of the reference audio, or None."""
    prompt: Tensor | None = None
    """(N, P, D) latent patches of the prompt audio, or None."""

    @property
    def length(self) -> int:
        reference = 0 if self.reference is None else len(self.reference) + 2
        return reference + len(self.tokens) + 1 + (0 if self.prompt is None else len(self.prompt))


@dataclass(frozen=True)
class PromptRows:
    """One row for each position of a prompt."""

    tokens: Tensor
    """(T,) int64; 0 at audio positions."""
    patches: Tensor
    """(T, P, D) fp32; zero at text positions."""
    is_audio: Tensor
    """(T,) bool."""


def lay_out(prompt: Prompt, patch_shape: tuple[int, int]) -> PromptRows:
    """``[ref_start, reference, ref_end,] tokens, audio_start [, prompt patches]``."""
    parts: list[tuple[Sequence[int], Tensor | None]] = []
    if prompt.reference is not None:
        parts += [((REF_AUDIO_START,), None), ((), prompt.reference), ((REF_AUDIO_END,), None)]
    parts.append(((*prompt.tokens, AUDIO_START), None))
    if prompt.prompt is not None:
        parts.append(((), prompt.prompt))
    tokens, patches, is_audio = [], [], []
    for ids, audio in parts:
        count = len(ids) if audio is None else len(audio)
        tokens.append(torch.tensor(ids if audio is None else [0] * count, dtype=torch.int64))
        patches.append(torch.zeros(count, *patch_shape, dtype=torch.float32) if audio is None else audio.float().cpu())
        is_audio.append(torch.full((count,), audio is not None))
    return PromptRows(torch.cat(tokens), torch.cat(patches), torch.cat(is_audio))


def priming_patches(prompt: Prompt) -> Tensor | None:
    """Patches (N, P, D) that the codec hears before the first new one; None without prompt audio.

    A prompt that is too short is led by the end of the reference audio, as upstream does.
    """
    if prompt.prompt is None:
        return None
    heard = [prompt.prompt] if prompt.reference is None else [prompt.reference, prompt.prompt]
    return torch.cat(heard)[-PRIMING_PATCHES:]
