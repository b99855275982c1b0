"""Streaming is exact: chunks, slots and company change nothing in what a stream sounds like."""

import random
from typing import Any

import pytest
import torch

from triton_speech.families.voxcpm2.audio_vae import AudioVAE
from triton_speech.families.voxcpm2.config import AudioVAEConfig
from triton_speech.families.voxcpm2.fused_plan import FusedPlan
from triton_speech.families.voxcpm2.streaming_decoder import StreamingDecoder

TOLERANCE = 1e-6
LATENT_DIM = 8

SMALL: dict[str, Any] = {
    "encoder_dim": 2,
    "encoder_rates": [2],
    "latent_dim": LATENT_DIM,
    "decoder_dim": 64,
    "decoder_rates": [8, 6, 5, 2, 2, 2],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "like the published one": {},
    "like the quickstart voice": {"decoder_dim": 48, "decoder_rates": [8, 6, 5, 4], "out_sample_rate": 24000},
    "full convolutions": {"decoder_dim": 32, "decoder_rates": [4, 3, 2], "depthwise": False},
    "odd strides": {"decoder_dim": 32, "decoder_rates": [5, 3, 7]},
    "stride one": {"decoder_dim": 32, "decoder_rates": [1, 5]},
    "one upsampling": {"decoder_dim": 16, "decoder_rates": [5]},
    "unconditioned": {"decoder_rates": [5, 2], "sr_bin_boundaries": None},
    "unconditioned full convolutions": {
        "decoder_rates": [5, 2],
        "sr_bin_boundaries": None,
        "depthwise": False,
    },
    "scale and bias, then a layer": {
        "decoder_rates": [5, 2],
        "cond_type": "scale_bias_init",
        "cond_out_layer": True,
    },
    "added rate": {"decoder_rates": [5, 2], "cond_type": "add"},
    "appended rate": {
        "decoder_rates": [5, 2],
        "cond_type": "concat",
        "cond_dim": 4,
        "cond_out_layer": True,
    },
}


def random_vae(seed: int = 0, **changes: Any) -> AudioVAE:
    """A small decoder with no parameter left at a value that would hide a mistake."""
    torch.manual_seed(seed)
    vae = AudioVAE(AudioVAEConfig(**{**SMALL, **changes})).eval().requires_grad_(False)
    for name, parameter in vae.decoder.named_parameters():
        if name.endswith("alpha") or "scale_embed" in name:
            parameter.uniform_(0.6, 1.6)
        elif "bias_embed" in name:
            parameter.normal_(std=0.3)
    vae.decoder.model[-2].weight.mul_(0.3)  # as loud as speech: rounding errors grow with the level
    return vae


def cut(frames: int, rng: random.Random, longest: int) -> list[int]:
    """Random chunk lengths that sum up to `frames`."""
    lengths: list[int] = []
    while sum(lengths) < frames:
        lengths.append(min(rng.randint(1, longest), frames - sum(lengths)))
    return lengths


def stream(decoder: StreamingDecoder, latents: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Decodes latents (B, D, T) in slots 1 to B, in chunks of `lengths` frames."""
    batch = latents.shape[0]
    state, slots = decoder.new_state(batch + 1), torch.arange(1, batch + 1)
    return torch.cat([decoder.decode(c, state, slots) for c in torch.split(latents, lengths, dim=2)], dim=1)


@pytest.mark.parametrize("name", CONFIGS)
def test_any_chunking_gives_the_samples_of_one_decode(name: str) -> None:
    vae = random_vae(**CONFIGS[name])
    decoder, rng = StreamingDecoder(vae), random.Random(name)
    latents = torch.randn(2, LATENT_DIM, 19)
    whole = vae.decode(latents)
    assert whole.std() > 1e-3, "silence would prove nothing"
    for lengths in ([1] * 19, [19], *(cut(19, rng, longest) for longest in (2, 3, 5, 9, 16))):
        chunks = stream(decoder, latents, lengths)
        assert chunks.shape == whole.shape
        assert (chunks - whole).abs().max() < TOLERANCE, lengths


@pytest.mark.parametrize("name", CONFIGS)
def test_in_double_precision_nothing_but_rounding_is_left(name: str) -> None:
    vae = random_vae(**CONFIGS[name]).double()
    latents = torch.randn(2, LATENT_DIM, 11, dtype=torch.float64)
    chunks = stream(StreamingDecoder(vae), latents, [1, 1, 3, 2, 4])
    assert (chunks - vae.decode(latents)).abs().max() < 1e-14


@pytest.mark.parametrize("name", CONFIGS)
def test_fused_layers_give_the_same_samples_and_the_same_past(name: str) -> None:
    """Biases are added elsewhere and the state is read from one buffer and written to another: nothing else changes."""
    vae = random_vae(**CONFIGS[name]).double()
    plain, fused = StreamingDecoder(vae), FusedPlan()
    fused.add_decoder(vae)
    assert fused.floats == plain.floats_per_slot
    plain_rows = plain.new_state(2).rows
    rows = torch.zeros_like(plain_rows)
    for frames in (1, 3, 2, 20):
        x = torch.randn(2, LATENT_DIM, frames, dtype=torch.float64)
        expected = plain.step(x, plain_rows)
        old, audio = rows.clone(), x.transpose(1, 2)
        for layer in fused.layers:
            audio = layer(audio, old, rows)
        assert (audio.squeeze(-1) - expected).abs().max() < 1e-14
        assert (rows - plain_rows).abs().max() < 1e-12


def test_chunks_shorter_than_what_a_convolution_remembers() -> None:
    """The first convolution remembers six frames and the widest one 54: chunks of one frame need several calls."""
    vae = random_vae(decoder_dim=16, decoder_rates=[1, 1])
    latents = torch.randn(1, LATENT_DIM, 80)
    chunks = stream(StreamingDecoder(vae), latents, [1] * 80)
    assert (chunks - vae.decode(latents)).abs().max() < TOLERANCE


def test_interleaved_streams_sound_as_each_would_alone() -> None:
    """Streams begin, pause and end at random; a slot is used again by the next stream."""
    vae, rng = random_vae(**CONFIGS["like the quickstart voice"]), random.Random(2)
    decoder = StreamingDecoder(vae)
    waiting = [torch.randn(LATENT_DIM, 2 * rng.randint(1, 8)) for _ in range(12)]
    expected = [vae.decode(latents.unsqueeze(0))[0] for latents in waiting]
    state, free = decoder.new_state(4), [1, 2, 3]
    order = list(range(12))
    active: dict[int, tuple[int, int]] = {}  # stream: (slot, frames done)
    heard: dict[int, list[torch.Tensor]] = {i: [] for i in order}
    while order or active:
        while free and order and (not active or rng.random() < 0.5):
            slot, i = free.pop(rng.randrange(len(free))), order.pop(0)
            decoder.reset(state, torch.tensor([slot]))
            active[i] = (slot, 0)
        some = rng.sample(sorted(active), rng.randint(1, len(active)))
        chunk = torch.stack([waiting[i][:, active[i][1] : active[i][1] + 2] for i in some])
        audio = decoder.decode(chunk, state, torch.tensor([active[i][0] for i in some]))
        for i, samples in zip(some, audio, strict=True):
            heard[i].append(samples)
            slot, done = active.pop(i)
            if done + 2 < waiting[i].shape[1]:
                active[i] = (slot, done + 2)
            else:
                free.append(slot)
    for i in heard:
        assert (torch.cat(heard[i]) - expected[i]).abs().max() < TOLERANCE


def test_padding_rows_in_a_scratch_slot_touch_no_stream() -> None:
    vae = random_vae()
    decoder, latents = StreamingDecoder(vae), torch.randn(1, LATENT_DIM, 4)
    state = decoder.new_state(3)
    first = decoder.decode(latents[:, :, :2], state, torch.tensor([2]))
    before = state.rows.clone()
    decoder.decode(torch.randn(3, LATENT_DIM, 2), state, torch.tensor([0, 0, 0]))
    assert torch.equal(state.rows[1:], before[1:])
    padded = torch.cat([latents[:, :, 2:], torch.randn(2, LATENT_DIM, 2)])
    second = decoder.decode(padded, state, torch.tensor([2, 0, 0]))[:1]
    assert (torch.cat([first, second], dim=1) - vae.decode(latents)).abs().max() < TOLERANCE


def test_reset_forgets_the_named_slots_only() -> None:
    decoder = StreamingDecoder(random_vae())
    state, slots = decoder.new_state(3), torch.arange(3)
    decoder.decode(torch.randn(3, LATENT_DIM, 2), state, slots)
    before = state.rows.clone()
    decoder.reset(state, torch.tensor([0, 2]))
    assert not state.rows[[0, 2]].any()
    assert torch.equal(state.rows[1], before[1])


def test_audio_owns_its_storage() -> None:
    decoder, latents = StreamingDecoder(random_vae()), torch.randn(1, LATENT_DIM, 2)
    state, slots = decoder.new_state(1), torch.tensor([0])
    first = decoder.decode(latents, state, slots)
    kept = first.clone()
    decoder.decode(latents, state, slots)
    assert torch.equal(first, kept)


def test_a_float16_autoencoder_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vae is torch\.float16, streaming needs torch\.float32 or"):
        StreamingDecoder(random_vae().half())


def test_what_does_not_fit_is_named() -> None:
    vae = random_vae()
    decoder = StreamingDecoder(vae)
    state, one = decoder.new_state(2), torch.tensor([1])
    with pytest.raises(ValueError, match=r"latents has shape \(1, 3, 2\), expected \(B, 8, T\)"):
        decoder.decode(torch.zeros(1, 3, 2), state, one)
    with pytest.raises(ValueError, match=r"slots has shape \(1,\), latents has 2 rows"):
        decoder.decode(torch.zeros(2, LATENT_DIM, 2), state, one)
