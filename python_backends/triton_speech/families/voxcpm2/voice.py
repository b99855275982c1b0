"""What a stored voice of VoxCPM2 holds: latent patches of a reference, of a prompt, or of both."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...voices.voice import Array, Voice, VoiceFileError

REFERENCE, PROMPT = "REFERENCE_LATENTS", "PROMPT_LATENTS"
VOICE_MODES = {
    "reference": frozenset({REFERENCE}),
    "continuation": frozenset({PROMPT}),
    "reference_continuation": frozenset({REFERENCE, PROMPT}),
}


def check_voice(voice: Voice, patch_shape: tuple[int, int]) -> None:
    """
    Raises:
        VoiceFileError: the voice does not fit a checkpoint with patches of this shape (P, D).
    """
    if voice.mode not in VOICE_MODES or set(voice.tensors) != VOICE_MODES[voice.mode]:
        raise VoiceFileError(f"holds {', '.join(voice.tensors) or 'nothing'} for the mode {voice.mode!r}")
    if (voice.prompt_text is None) == (PROMPT in voice.tensors):
        raise VoiceFileError("holds a prompt without its text, or the text without the prompt")
    for name, patches in voice.tensors.items():
        if patches.dtype != np.float32 or patches.shape[1:] != patch_shape or len(patches) == 0:
            wanted = f"float32 [n, {patch_shape[0]}, {patch_shape[1]}]"
            raise VoiceFileError(f"has {name} of {patches.dtype} {list(patches.shape)}; the checkpoint needs {wanted}")
        if not np.isfinite(patches).all():
            raise VoiceFileError(f"has NaN or infinite values in {name}")


def voice_outputs(voice: Voice | None, patch_shape: tuple[int, int]) -> Mapping[str, Array]:
    """Latents (N, P, D) by the name of the reference stage's output; (0, P, D) for what the voice has not."""
    tensors = {} if voice is None else voice.tensors
    return {name: tensors.get(name, np.zeros((0, *patch_shape), dtype=np.float32)) for name in (REFERENCE, PROMPT)}
