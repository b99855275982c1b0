"""Streaming is exact: any cut, any company and any length give what decoding at once gives."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from triton_speech.families.qwen3_tts import load_codec
from triton_speech.families.qwen3_tts.checkpoint import load_speech_decoder
from triton_speech.families.qwen3_tts.speech_decoder import SpeechDecoder
from triton_speech.families.qwen3_tts.streaming_decoder import MOST_FRAMES, StreamingDecoder

Checkpoint = Callable[[str], Path]
HOP = 1920
CLOSE = 1e-5


@pytest.fixture(scope="module")
def decoder(checkpoint: Checkpoint) -> SpeechDecoder:
    return load_speech_decoder(checkpoint("base"))


@pytest.fixture(scope="module")
def streaming(decoder: SpeechDecoder) -> StreamingDecoder:
    return StreamingDecoder(decoder)


def codes(batch: int, frames: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 64, (batch, frames, 16), generator=torch.Generator().manual_seed(seed))


def stream(streaming: StreamingDecoder, whole: Tensor, sizes: list[int]) -> list[Tensor]:
    state, slots = streaming.new_state(len(whole) + 1), torch.arange(len(whole)) + 1
    return [streaming.decode(piece, state, slots) for piece in torch.split(whole, sizes, dim=1)]


@pytest.mark.parametrize("sizes", [[40], [1, 39], [1] * 40, [1, 2, 4, 8, 16, 9], [7, 1, 25, 7], [3, 0, 37]])
def test_chunks_together_are_the_whole_and_each_has_its_length(
    decoder: SpeechDecoder, streaming: StreamingDecoder, sizes: list[int]
) -> None:
    whole = codes(2, 40)
    chunks = stream(streaming, whole, sizes)
    assert [chunk.shape[1] for chunk in chunks] == [size * HOP for size in sizes]
    expected = decoder(whole)
    assert (torch.cat(chunks, dim=1) - expected).abs().max() < CLOSE * expected.abs().max()


def test_the_first_chunk_is_the_first_frame_of_the_whole(decoder: SpeechDecoder, streaming: StreamingDecoder) -> None:
    whole = codes(3, 20, seed=1)
    first = stream(streaming, whole, [1, 19])[0]
    expected = decoder(whole)[:, :HOP]
    assert (first - expected).abs().max() < CLOSE * expected.abs().max()


def test_random_samples_fill_their_range_without_being_cut_off(decoder: SpeechDecoder) -> None:
    audio = decoder(codes(4, 20))
    assert 0.05 < audio.std() < 0.5
    assert (audio.abs() == 1).float().mean() < 0.01


def test_a_frame_is_heard_as_long_as_the_windows_reach_and_no_longer(decoder: SpeechDecoder) -> None:
    """So the window of this decoder is put to use, and streaming it exactly means something."""
    one, other = codes(1, 60), codes(1, 60)
    other[0, 3] = (other[0, 3] + 1) % 64
    apart = (decoder(one) - decoder(other)).abs().view(60, HOP).amax(1)
    assert apart[:3].max() == 0
    # Two layers that look back 5 frames each, the convolution before them 2, and those behind a few frames more.
    assert apart[3 + 10] > 1e-6
    assert apart[3 + 2 * 5 + 2 + 8 :].max() < 1e-6


def test_positions_do_not_grow_with_the_stream(streaming: StreamingDecoder) -> None:
    """A piece sounds alike at the start of a stream and after ten thousand frames of the same."""
    state, slot = streaming.new_state(2), torch.tensor([1])
    piece = codes(1, 1).expand(-1, 50, -1)
    early = streaming.decode(piece, state, slot)[:, -HOP:]
    for _ in range(40):
        late = streaming.decode(piece.repeat(1, 5, 1), state, slot)[:, -HOP:]
    assert (late - early).abs().max() < 1e-5


def test_pieces_longer_than_a_step_are_several_steps(decoder: SpeechDecoder, streaming: StreamingDecoder) -> None:
    whole = codes(1, MOST_FRAMES + 5)
    expected = decoder(whole)
    (audio,) = stream(streaming, whole, [MOST_FRAMES + 5])
    assert (audio - expected).abs().max() < CLOSE * expected.abs().max()


def test_streams_do_not_hear_each_other(streaming: StreamingDecoder) -> None:
    whole = codes(3, 12, seed=4)
    alone = [torch.cat(stream(streaming, whole[[row]], [4] * 3), dim=1)[0] for row in range(3)]
    state = streaming.new_state(4)
    # In turns: never all three in a batch, and in another order each time.
    heard: dict[int, list[Tensor]] = {0: [], 1: [], 2: []}
    for rows in ([0, 1], [2, 0], [1, 2], [2, 1], [0]):
        pieces = torch.stack([whole[row, 4 * len(heard[row]) :][:4] for row in rows])
        audio = streaming.decode(pieces, state, torch.tensor(rows) + 1)
        for row, samples in zip(rows, audio, strict=True):
            heard[row].append(samples)
    for row in range(3):
        together = torch.cat(heard[row])
        assert (together - alone[row]).abs().max() < 1e-5


def test_a_slot_forgets_the_stream_before(checkpoint: Checkpoint) -> None:
    codec = load_codec(checkpoint("base"), slots=2)
    frames = codes(1, 9).float().unsqueeze(2)
    first = codec.decode(frames, [1])
    codec.reset(1)
    assert torch.equal(codec.decode(frames, [1]), first)
    assert not torch.equal(codec.decode(frames, [1]), first)


def test_codes_out_of_range_are_clamped(decoder: SpeechDecoder, streaming: StreamingDecoder) -> None:
    wild = codes(1, 6)
    wild[0, 2, 3], wild[0, 4, 0] = -7, 5000
    tame = wild.clamp(0, 63)
    assert torch.equal(decoder(wild), decoder(tame))
    assert torch.equal(stream(streaming, wild, [6])[0], stream(streaming, tame, [6])[0])


def test_no_frames_are_no_samples_and_change_nothing(streaming: StreamingDecoder) -> None:
    state, slot = streaming.new_state(2), torch.tensor([1])
    streaming.decode(codes(1, 3), state, slot)
    before = state.rows.clone()
    assert streaming.decode(codes(1, 0), state, slot).shape == (1, 0)
    assert torch.equal(state.rows, before)


def test_shapes_that_do_not_fit_are_refused(streaming: StreamingDecoder) -> None:
    state = streaming.new_state(2)
    for bad in (torch.zeros(1, 2, 15, dtype=torch.int64), torch.zeros(2, 16, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"must be \(B, T, 16\)"):
            streaming.decode(bad, state, torch.tensor([1]))


def test_half_precision_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match=r"needs torch\.float32"):
        StreamingDecoder(load_speech_decoder(checkpoint("base")).half())
