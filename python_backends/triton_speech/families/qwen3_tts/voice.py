"""What a stored voice of Qwen3-TTS holds, and how recordings travel between stages.

Everything has the shape of frames, (n, 1, G) in fp32. A speaker's vector of H values is H / G rows. A reference is a
vector; a prompt is the vector of its speaker, then the codes of its frames.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...voices.voice import Array, Voice, VoiceFileError
from .config import Qwen3TTSConfig

REFERENCE, PROMPT = "REFERENCE_LATENTS", "PROMPT_LATENTS"
VOICE_MODES = {
    "reference": frozenset({REFERENCE}),
    "continuation": frozenset({PROMPT}),
    "reference_continuation": frozenset({REFERENCE, PROMPT}),
}


def check_voice(voice: Voice, config: Qwen3TTSConfig) -> None:
    """
    Raises:
        VoiceFileError: the voice does not fit a checkpoint with this configuration.
    """
    if config.tts_model_type != "base":
        raise VoiceFileError(f"needs a base model; the checkpoint is a {config.tts_model_type} model")
    if voice.mode not in VOICE_MODES or set(voice.tensors) != VOICE_MODES[voice.mode]:
        raise VoiceFileError(f"holds {', '.join(voice.tensors) or 'nothing'} for the mode {voice.mode!r}")
    if (voice.prompt_text is None) == (PROMPT in voice.tensors):
        raise VoiceFileError("holds a prompt without its text, or the text without the prompt")
    groups = config.talker_config.num_code_groups
    rows = vector_rows(config)
    for name, array in voice.tensors.items():
        fits = len(array) == rows if name == REFERENCE else len(array) > rows
        if array.dtype != np.float32 or array.shape[1:] != (1, groups) or not fits:
            wanted = f"float32 [{rows if name == REFERENCE else f'more than {rows}'}, 1, {groups}]"
            raise VoiceFileError(f"has {name} of {array.dtype} {list(array.shape)}; the checkpoint needs {wanted}")
        if not np.isfinite(array).all():
            raise VoiceFileError(f"has NaN or infinite values in {name}")


def voice_outputs(voice: Voice | None, config: Qwen3TTSConfig) -> Mapping[str, Array]:
    """Arrays by the name of the reference stage's output; of no rows for what the voice has not."""
    tensors = {} if voice is None else voice.tensors
    nothing = np.zeros((0, 1, config.talker_config.num_code_groups), dtype=np.float32)
    return {name: tensors.get(name, nothing) for name in (REFERENCE, PROMPT)}


def vector_rows(config: Qwen3TTSConfig) -> int:
    """Rows that a speaker's vector takes."""
    return config.talker_config.hidden_size // config.talker_config.num_code_groups
