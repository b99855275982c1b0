"""What the codec hears before the first new patch of a continuation."""

import torch

from triton_speech.families.voxcpm2.prompt import PRIMING_PATCHES, Prompt, priming_patches


def patches(count: int, start: float) -> torch.Tensor:
    return (start + torch.arange(float(count))).view(-1, 1, 1).expand(count, 2, 8)


def heard(prompt: Prompt) -> list[float]:
    primer = priming_patches(prompt)
    assert primer is not None
    assert primer.shape[1:] == (2, 8)
    return primer[:, 0, 0].tolist()


def test_it_is_the_end_of_the_prompt_audio() -> None:
    assert PRIMING_PATCHES == 3
    assert heard(Prompt([1], prompt=patches(5, 10))) == [12, 13, 14]
    assert heard(Prompt([1], reference=patches(5, 20), prompt=patches(5, 10))) == [12, 13, 14]


def test_a_short_prompt_is_all_that_there_is() -> None:
    assert heard(Prompt([1], prompt=patches(2, 10))) == [10, 11]


def test_a_short_prompt_is_led_by_the_end_of_the_reference() -> None:
    """Upstream takes the last audio positions of the whole prompt, so our first samples used to differ."""
    assert heard(Prompt([1], reference=patches(5, 20), prompt=patches(2, 10))) == [24, 10, 11]


def test_without_prompt_audio_there_is_none() -> None:
    assert priming_patches(Prompt([1])) is None
    assert priming_patches(Prompt([1], reference=patches(5, 20))) is None
