"""Convolutions with a past: any division into pieces gives the same, and streams do not touch each other."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_speech.families.vibevoice.checkpoint import load_speaker
from triton_speech.families.vibevoice.speech_layers import CausalConv, CausalUpsample, reserve

FRAMES = 9


@pytest.fixture(scope="module")
def parts(folder: Path) -> dict[str, tuple[Any, torch.Tensor, int]]:
    """The coder, a signal (1, N) or (1, T, D), and how long a frame of it is."""
    model = load_speaker(folder).model
    source = torch.Generator().manual_seed(0)
    return {
        "decoder": (model.acoustic_tokenizer.decoder, torch.randn(1, FRAMES, 64, generator=source), 1),
        "encoder": (model.semantic_tokenizer.encoder, torch.randn(1, FRAMES * 3200, generator=source) / 10, 3200),
    }


@pytest.mark.parametrize("cuts", [tuple(range(FRAMES + 1)), (0, 4, 9), (0, 1, 3, 7, 9), (0, 8, 9)])
@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_pieces_are_the_whole(parts: dict[str, Any], name: str, cuts: tuple[int, ...]) -> None:
    coder, signal, size = parts[name]
    rows = coder.new_rows(1)
    pieces = [coder.run(signal[:, first * size : last * size], rows) for first, last in pairwise(cuts)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), coder(signal), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_streams_of_different_ages_share_a_batch(parts: dict[str, Any], name: str) -> None:
    coder, signal, size = parts[name]
    rows = coder.new_rows(2)
    older = rows[:1]
    coder.run(signal[:, : 3 * size], older)
    both = torch.cat((signal[:, 3 * size : 5 * size], signal[:, : 2 * size]))
    made, whole = coder.run(both, rows), coder(signal)
    step = whole.shape[1] // FRAMES
    torch.testing.assert_close(made[0], whole[0, 3 * step : 5 * step], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(made[1], whole[0, : 2 * step], atol=1e-5, rtol=1e-4)


def test_every_convolution_has_a_place_of_its_own(parts: dict[str, Any]) -> None:
    for coder, _, _ in parts.values():
        convolutions = [part for part in coder.modules() if isinstance(part, CausalConv | CausalUpsample)]
        places = sorted((part.past.start, part.past.start + part.past.size) for part in convolutions)
        assert [start for start, _ in places] == [0, *(stop for _, stop in places[:-1])]
        assert places[-1][1] == coder.floats == reserve(coder)


def test_a_recordings_last_part_counts_as_a_frame(parts: dict[str, Any]) -> None:
    coder, signal, size = parts["encoder"]
    assert [coder(signal[:, :count]).shape[1] for count in (1, size, size + 1)] == [1, 1, 2]
