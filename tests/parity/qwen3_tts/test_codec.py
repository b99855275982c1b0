"""The speech tokenizer and the speaker encoder against upstream's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_speech.families.qwen3_tts import load_reference_encoder
from triton_speech.families.qwen3_tts.checkpoint import load_speech_decoder
from triton_speech.families.qwen3_tts.streaming_decoder import StreamingDecoder

LIMIT = 1e-4
Checkpoint = Callable[[str], Path]
RECORDINGS = ("short", "whole", "long")


def test_decoded_audio_is_upstreams(goldens: Any, checkpoint: Checkpoint) -> None:
    codes = goldens.tensors["codec/codes"].long().unsqueeze(0)
    audio = load_speech_decoder(checkpoint("base"))(codes)[0, :: goldens.notes["audio_stride"]]
    goldens.check("codec: decoded at once", audio, goldens.tensors["codec/audio"], LIMIT)


@pytest.mark.parametrize("sizes", [(1, 59), (1,) * 60, (25, 35), (1, 2, 4, 8, 16, 29)])
def test_streamed_audio_is_upstreams(goldens: Any, checkpoint: Checkpoint, sizes: tuple[int, ...]) -> None:
    decoder = StreamingDecoder(load_speech_decoder(checkpoint("base")))
    state, slot = decoder.new_state(2), torch.tensor([1])
    pieces = goldens.tensors["codec/codes"].long().unsqueeze(0).split(sizes, dim=1)
    audio = torch.cat([decoder.decode(piece, state, slot)[0] for piece in pieces])
    goldens.check("codec: streamed", audio[:: goldens.notes["audio_stride"]], goldens.tensors["codec/audio"], LIMIT)


@pytest.mark.parametrize("name", RECORDINGS)
def test_codes_of_a_recording_are_upstreams(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    samples = goldens.tensors[f"encode/{name}/audio"].numpy()
    codes = load_reference_encoder(checkpoint("base")).codes(samples)
    assert torch.equal(torch.from_numpy(codes), goldens.tensors[f"encode/{name}/codes"].long())


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_speakers_vector_is_upstreams(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    samples = goldens.tensors[f"encode/{name}/audio"].numpy()
    vector = torch.from_numpy(load_reference_encoder(checkpoint("base")).speaker_vector(samples))
    goldens.check("speaker vector", vector, goldens.tensors[f"encode/{name}/speaker"], LIMIT)
