"""Which stored voices a VoxCPM2 checkpoint can speak in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from triton_speech.families.voxcpm2.voice import check_voice, voice_outputs
from triton_speech.voices.voice import Voice, VoiceFileError

SHAPE = (2, 8)


def latents(frames: int = 3, shape: tuple[int, ...] = SHAPE, dtype: Any = np.float32) -> Any:
    return np.ones((frames, *shape), dtype)


def voice(mode: str = "reference", text: str | None = None, **tensors: Any) -> Voice:
    return Voice("voxcpm2", mode, tensors or {"REFERENCE_LATENTS": latents()}, text)


BOTH = {"REFERENCE_LATENTS": latents(), "PROMPT_LATENTS": latents(5)}
USABLE = [
    voice(),
    voice("continuation", "Hi.", PROMPT_LATENTS=latents()),
    voice("reference_continuation", "Hi.", **BOTH),
]
UNUSABLE = [
    (voice(REFERENCE_LATENTS=latents(shape=(4, 64))), "REFERENCE_LATENTS of float32 [3, 4, 64]; the checkpoint needs"),
    (voice(REFERENCE_LATENTS=latents(dtype=np.float64)), "REFERENCE_LATENTS of float64"),
    (voice(REFERENCE_LATENTS=latents(0)), "[0, 2, 8]"),
    (voice(REFERENCE_LATENTS=np.float32(1)), "REFERENCE_LATENTS of float32 []"),
    (voice(REFERENCE_LATENTS=np.full((3, 2, 8), np.nan, np.float32)), "NaN or infinite values in REFERENCE_LATENTS"),
    (voice("continuation"), "holds REFERENCE_LATENTS for the mode 'continuation'"),
    (voice("speaker_embedding"), "for the mode 'speaker_embedding'"),
    (voice(SPEAKER=latents()), "holds SPEAKER for the mode 'reference'"),
    (voice("continuation", None, PROMPT_LATENTS=latents()), "a prompt without its text"),
    (voice("reference", "Hi."), "the text without the prompt"),
]


@pytest.mark.parametrize("usable", USABLE, ids=lambda one: one.mode)
def test_every_mode_is_usable_and_gives_both_outputs(usable: Voice) -> None:
    check_voice(usable, SHAPE)
    outputs = voice_outputs(usable, SHAPE)
    assert {name: len(array) for name, array in outputs.items() if len(array)} == usable.frames
    assert {array.shape[1:] for array in outputs.values()} == {SHAPE}


@pytest.mark.parametrize(("unusable", "says"), UNUSABLE, ids=[says for _, says in UNUSABLE])
def test_a_voice_that_does_not_fit_says_why(unusable: Voice, says: str) -> None:
    with pytest.raises(VoiceFileError) as caught:
        check_voice(unusable, SHAPE)
    assert says in str(caught.value)


def test_no_voice_gives_no_latents() -> None:
    assert {name: array.shape for name, array in voice_outputs(None, SHAPE).items()} == {
        "REFERENCE_LATENTS": (0, 2, 8),
        "PROMPT_LATENTS": (0, 2, 8),
    }
