"""Each fused kernel of the streaming decoder computes what plain torch does, and so does the decoder made of them.

Also run on a CPU, slowly, with TRITON_INTERPRET=1 where the Triton language is installed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from triton_speech.families.streaming_layers import Depthwise, Output, Past, SnakeLayer
from triton_speech.families.voxcpm2 import codec_ops
from triton_speech.families.voxcpm2.audio_vae import SNAKE_EPS, AudioVAE
from triton_speech.families.voxcpm2.config import AudioVAEConfig
from triton_speech.families.voxcpm2.streaming_decoder import StreamingDecoder

INTERPRETABLE = True
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BEFORE, BEHIND = 32, 16  # floats of other layers around this one's past
LIMIT = 3e-6
LATENT_DIM = 8
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device here")


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = allowed


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE)


def snake(channels: int, seed: int) -> SnakeLayer:
    alpha = 0.6 + draw(channels, seed=seed).abs()
    return SnakeLayer(alpha, 1.0 / (alpha + SNAKE_EPS))


def past(frames: int, channels: int) -> Past:
    return Past(BEFORE, BEFORE + frames * channels, frames, channels)


def check(monkeypatch: pytest.MonkeyPatch, function, x: Tensor, *arguments: object, state: Past) -> None:
    """Kernel and plain torch give the same output and leave the same rows."""
    old = draw(x.shape[0], state.end + BEHIND)
    fused_rows, rows = old.clone(), old.clone()
    assert codec_ops.has_kernels(x)
    fused = function(x, *arguments, old, fused_rows)
    with monkeypatch.context() as patched:
        patched.setattr(codec_ops, "_HAS_TRITON_LANGUAGE", False)
        expected = function(x, *arguments, old, rows)
    torch.testing.assert_close(fused, expected, rtol=LIMIT, atol=LIMIT)
    torch.testing.assert_close(fused_rows, rows, rtol=LIMIT, atol=LIMIT)


@pytest.mark.parametrize("frames", [1, 4, 13, 100])
@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize(("batch", "channels"), [(1, 32), (3, 48), (2, 5)])
def test_depthwise(monkeypatch, batch, channels, dilation, frames):
    state = past(6 * dilation, channels)
    conv = Depthwise(draw(channels, 1, 7), draw(channels), dilation, state)
    x, offset = draw(batch, frames, channels), draw(channels, seed=1)
    check(monkeypatch, codec_ops.depthwise, x, offset, snake(channels, 2), conv, snake(channels, 3), state=state)


@pytest.mark.parametrize("frames", [1, 4, 16])
def test_depthwise_of_latents_as_they_come(monkeypatch, frames):
    """Without snakes, and channels lie apart in memory."""
    state = past(6, 64)
    conv, x = Depthwise(draw(64, 1, 7), draw(64), 1, state), draw(2, 64, frames).transpose(1, 2)
    check(monkeypatch, codec_ops.depthwise, x, draw(64, seed=1), None, conv, None, state=state)


@pytest.mark.parametrize("steps", [2, 8, 16])
@pytest.mark.parametrize("dilation", [1, 9])
def test_depthwise_however_many_frames_a_block_slides_over(monkeypatch, steps, dilation):
    from triton_speech.families.voxcpm2 import codec_kernels

    monkeypatch.setattr(codec_kernels, "STEPS", ((0, steps),))
    state = past(6 * dilation, 32)
    conv = Depthwise(draw(32, 1, 7), draw(32), dilation, state)
    for frames in (5, 600):
        x, offset = draw(2, frames, 32), draw(32, seed=1)
        check(monkeypatch, codec_ops.depthwise, x, offset, snake(32, 2), conv, snake(32, 3), state=state)


@pytest.mark.parametrize("frames", [1, 2, 33])
@pytest.mark.parametrize(("batch", "channels"), [(1, 64), (3, 80), (2, 5)])
def test_snake_pairs(monkeypatch, batch, channels, frames):
    state, x = past(1, channels), draw(batch, frames, channels)
    scale, offset = draw(channels, seed=1), draw(channels, seed=2)
    check(monkeypatch, codec_ops.snake_pairs, x, scale, offset, snake(channels, 3), state, state=state)


@pytest.mark.parametrize("frames", [1, 5, 70])
@pytest.mark.parametrize(("batch", "channels"), [(1, 32), (2, 80), (3, 1)])
def test_snake_output(monkeypatch, batch, channels, frames):
    state, x = past(6, channels), draw(batch, frames, channels)
    conv = Output(0.1 * draw(1, channels, 7), draw(1), 1, state)
    check(monkeypatch, codec_ops.snake_output, x, draw(channels, seed=1), snake(channels, 2), conv, state=state)


def test_a_snake_of_large_numbers_stays_exact():
    """The kernel's sine is its own: a polynomial within half a turn."""
    x = torch.linspace(-1000, 1000, 4096, device=DEVICE).view(1, 128, 32)
    ones, zeros, state = torch.ones(32, device=DEVICE), torch.zeros(32, device=DEVICE), past(1, 32)
    rows = torch.zeros(1, state.end, device=DEVICE)
    out = codec_ops.snake_pairs(x, ones, zeros, SnakeLayer(ones, ones), state, rows.clone(), rows)[:, :, 32:]
    wide = x.double()
    # Without fused multiply-adds, which the interpreter lacks, some bits of the angle are lost.
    limit = 1e-4 if DEVICE == "cuda" else 1e-3
    assert (out - (wide + wide.sin().square())).abs().max() < limit


def random_vae(**changes: object) -> AudioVAE:
    torch.manual_seed(0)
    sizes = {"encoder_dim": 2, "encoder_rates": [2], "latent_dim": LATENT_DIM, "decoder_dim": 64}
    config = AudioVAEConfig.model_validate({**sizes, "decoder_rates": [4, 3, 2], **changes})
    vae = AudioVAE(config).eval().requires_grad_(False)
    for name, parameter in vae.decoder.named_parameters():
        if name.endswith("alpha") or "scale_embed" in name:
            parameter.uniform_(0.6, 1.6)
        elif "bias_embed" in name:
            parameter.normal_(std=0.3)
    vae.decoder.model[-2].weight.mul_(0.3)
    return vae.to(DEVICE)


def pair(monkeypatch: pytest.MonkeyPatch, vae: AudioVAE) -> tuple[StreamingDecoder, StreamingDecoder]:
    """A decoder with kernels and a plain one."""
    with monkeypatch.context() as patched:
        patched.setattr(codec_ops, "_HAS_TRITON_LANGUAGE", False)
        plain = StreamingDecoder(vae)
    return StreamingDecoder(vae), plain


@pytest.mark.parametrize("lengths", [[1, 1, 1], [4, 4], [3, 1, 6]])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"depthwise": False},
        {"cond_type": "add"},
        {"cond_type": "concat", "cond_dim": 4, "cond_out_layer": True},
        {"sr_bin_boundaries": None, "decoder_dim": 24},
    ],
)
def test_the_decoder_gives_the_plain_ones_samples_and_past(monkeypatch, changes, lengths):
    fused, plain = pair(monkeypatch, random_vae(**changes))
    latents, slots = draw(3, LATENT_DIM, sum(lengths)), torch.tensor([2, 0, 3], device=DEVICE)
    state, expected_state = fused.new_state(4), plain.new_state(4)
    for chunk in latents.split(lengths, dim=2):
        audio, expected = fused.decode(chunk, state, slots), plain.decode(chunk, expected_state, slots)
        assert expected.std() > 1e-3, "silence would prove nothing"
        assert (audio - expected).abs().max() < 1e-6
        torch.testing.assert_close(state.rows, expected_state.rows, rtol=LIMIT, atol=LIMIT)


@on_gpu
@pytest.mark.parametrize(("batch", "frames"), [(1, 1), (1, 4), (8, 4), (64, 4), (3, 16)])
def test_the_published_size(monkeypatch, batch, frames):
    fused, plain = pair(monkeypatch, random_vae(decoder_dim=2048, decoder_rates=[8, 6, 5, 2, 2, 2]))
    state, expected_state = fused.new_state(batch), plain.new_state(batch)
    slots = torch.arange(batch, device=DEVICE)
    for seed in range(3):
        latents = draw(batch, LATENT_DIM, frames, seed=seed)
        audio, expected = fused.decode(latents, state, slots), plain.decode(latents, expected_state, slots)
        assert (audio - expected).abs().max() < 1e-6
        torch.testing.assert_close(state.rows, expected_state.rows, rtol=1e-5, atol=1e-5)


@on_gpu
@pytest.mark.parametrize("frames", [1, 4])
def test_a_captured_step_gives_the_same_bits(frames):
    decoder = StreamingDecoder(random_vae())
    latents, rows = draw(2, LATENT_DIM, frames), decoder.new_state(2).rows
    with torch.no_grad():
        decoder.step(latents, rows.clone())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            audio = decoder.step(latents, rows)
        rows.zero_()
        expected_rows = rows.clone()
        for seed in range(3):
            latents.copy_(draw(2, LATENT_DIM, frames, seed=seed))
            graph.replay()
            assert torch.equal(audio, decoder.step(latents, expected_rows))
            assert torch.equal(rows, expected_rows)
