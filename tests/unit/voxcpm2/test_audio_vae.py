"""The AudioVAE: checkpoint names and shapes, folding of weight norm, encode and decode, configuration errors."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from triton_speech.families.voxcpm2.audio_vae import (
    AudioVAE,
    checkpoint_tensors,
    fold_weight_norm,
    unfold_weight_norm,
)
from triton_speech.families.voxcpm2.config import AudioVAEConfig

DATA = Path(__file__).parents[3] / "../shared/data"

SMALL: dict[str, Any] = {
    "encoder_dim": 4,
    "encoder_rates": [2, 5],
    "latent_dim": 6,
    "decoder_dim": 32,
    "decoder_rates": [5, 3, 2],
    "sample_rate": 16000,
    "out_sample_rate": 48000,
}


def small_vae(**changes: Any) -> AudioVAE:
    torch.manual_seed(0)
    return AudioVAE(AudioVAEConfig(**{**SMALL, **changes})).eval().requires_grad_(False)


def test_names_and_shapes_are_those_of_the_published_checkpoint() -> None:
    folder = DATA / "voxcpm2"
    if not (folder / "audiovae_manifest.json").is_file():
        pytest.skip(f"the checkpoint's manifest is not at {folder}")
    manifest = json.loads((folder / "audiovae_manifest.json").read_text())
    config = json.loads((folder / "config.json").read_text())["audio_vae_config"]
    expected = {name: tuple(entry["shape"]) for name, entry in manifest.items()}
    assert checkpoint_tensors(AudioVAEConfig(**config)) == expected


def test_default_configuration_is_that_of_the_published_checkpoint() -> None:
    tensors = checkpoint_tensors(AudioVAEConfig())
    assert len(tensors) == 312
    assert tensors["decoder.model.2.block.1.weight_g"] == (2048, 1, 1)
    assert tensors["decoder.sr_bin_boundaries"] == (3,)
    assert tensors["encoder.fc_logvar.weight_v"] == (64, 2048, 3)


def test_quickstart_checkpoint_loads_whole_and_decodes_what_it_encodes() -> None:
    folder = DATA / "quickstart_voice"
    if not (folder / "audiovae.pth").is_file():
        pytest.skip(f"the quickstart voice is not at {folder}")
    config = json.loads((folder / "config.json").read_text())["audio_vae_config"]
    vae = AudioVAE(AudioVAEConfig(**config)).eval().requires_grad_(False)
    state = torch.load(folder / "audiovae.pth", weights_only=True)["state_dict"]
    assert {name: tuple(t.shape) for name, t in state.items()} == checkpoint_tensors(vae.config)
    vae.load_state_dict(fold_weight_norm(state))
    tone = 0.3 * torch.sin(torch.arange(16000) * (2 * math.pi * 200 / 16000)).unsqueeze(0)
    audio = vae.decode(vae.encode(tone))
    assert audio.shape == (1, 24000)
    assert 0.01 < audio.abs().max() <= 1.0


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("convolution", [nn.Conv1d(3, 5, 4), nn.ConvTranspose1d(3, 5, 4)])
def test_folding_is_what_torch_computes_at_each_call(convolution: nn.Module) -> None:
    normed = nn.utils.weight_norm(convolution)
    with torch.no_grad():
        normed.weight_g.mul_(torch.rand_like(normed.weight_g) + 0.5)
        normed(torch.zeros(1, 3, 8))  # computes `weight` from its parts
    folded = fold_weight_norm(normed.state_dict())
    assert folded.keys() == {"weight", "bias"}
    assert torch.equal(folded["weight"], normed.weight)


def test_half_precision_is_widened_before_folding() -> None:
    gain, direction = torch.rand(4, 1, 1).half(), torch.randn(4, 2, 3).half()
    folded = fold_weight_norm({"c.weight_g": gain, "c.weight_v": direction, "n": torch.tensor([1])})
    wide = fold_weight_norm({"c.weight_g": gain.float(), "c.weight_v": direction.float()})
    assert folded["c.weight"].dtype == torch.float32
    assert torch.equal(folded["c.weight"], wide["c.weight"])
    assert folded["n"].dtype == torch.int64


def test_unfolding_and_folding_give_the_weights_back() -> None:
    vae = small_vae()
    unfolded = unfold_weight_norm(vae.state_dict(), vae)
    assert {name: tuple(t.shape) for name, t in unfolded.items()} == checkpoint_tensors(vae.config)
    folded = fold_weight_norm(unfolded)
    assert folded.keys() == vae.state_dict().keys()
    for name, tensor in vae.state_dict().items():
        torch.testing.assert_close(folded[name], tensor, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("present", "missing"), [("weight_v", "weight_g"), ("weight_g", "weight_v")])
def test_half_a_pair_is_an_error_that_names_both_halves(present: str, missing: str) -> None:
    with pytest.raises(ValueError, match=rf"has c\.{present} but no c\.{missing}"):
        fold_weight_norm({f"c.{present}": torch.ones(2, 1, 1)})


@pytest.mark.parametrize(("samples", "frames"), [(1, 1), (10, 1), (11, 2), (20, 2), (95, 10)])
def test_encode_pads_the_end_to_whole_frames(samples: int, frames: int) -> None:
    vae, audio = small_vae(), torch.randn(2, samples)
    latents = vae.encode(audio)
    assert latents.shape == (2, 6, frames)
    padded = torch.cat([audio, torch.zeros(2, frames * 10 - samples)], dim=1)
    assert torch.equal(latents, vae.encode(padded))


def test_encode_and_decode_are_causal() -> None:
    vae, audio, latents = small_vae(), torch.randn(1, 100), torch.randn(1, 6, 10)
    torch.testing.assert_close(vae.encode(audio[:, :60]), vae.encode(audio)[:, :, :6])
    torch.testing.assert_close(vae.decode(latents[:, :, :6]), vae.decode(latents)[:, : 6 * vae.decoder_hop])


@pytest.mark.parametrize("depthwise", [True, False])
@pytest.mark.parametrize(
    "conditioning",
    [
        {"cond_type": "scale_bias"},
        {"cond_type": "scale_bias_init", "cond_out_layer": True},
        {"cond_type": "add"},
        {"cond_type": "concat", "cond_dim": 5, "cond_out_layer": True},
        {"sr_bin_boundaries": None},
    ],
)
def test_decode_makes_hop_samples_for_each_frame(depthwise: bool, conditioning: dict[str, Any]) -> None:
    vae = small_vae(depthwise=depthwise, **conditioning)
    audio = vae.decode(torch.randn(3, 6, 7))
    assert audio.shape == (3, 7 * vae.decoder_hop)
    assert audio.abs().max() <= 1.0


@pytest.mark.parametrize(
    ("sample_rate", "bucket"), [(16000, 0), (20000, 0), (20001, 1), (40000, 2), (44100, 3), (48000, 3)]
)
def test_the_rate_falls_in_the_bucket_whose_upper_edge_it_does_not_pass(sample_rate: int, bucket: int) -> None:
    found = small_vae().decoder.bucket(sample_rate)
    assert found is not None
    assert found.tolist() == [bucket]


def test_decode_is_told_the_output_rate_unless_another_is_given() -> None:
    vae, latents = small_vae(cond_type="add"), torch.randn(1, 6, 4)
    assert torch.equal(vae.decode(latents), vae.decode(latents, sample_rate=48000))
    assert not torch.equal(vae.decode(latents), vae.decode(latents, sample_rate=24000))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_noise_block": True}, "use_noise_block is true: not supported at inference"),
        ({"decoder_rates": []}, r"decoder_rates is \[\], expected one or more"),
        ({"encoder_rates": [2, 0]}, r"encoder_rates is \[2, 0\], expected one or more"),
        ({"decoder_dim": 7}, "decoder_dim is 7, at least 8 is needed"),
        ({"cond_type": "concat"}, "cond_out_layer is false, cond_type 'concat' needs it"),
    ],
)
def test_an_unusable_configuration_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AudioVAE(AudioVAEConfig(**{**SMALL, **changes}))


@pytest.mark.parametrize("shape", [(10,), (1, 0), (1, 1, 10)])
def test_encode_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"audio has shape .*, expected \(B, N\) with N > 0"):
        small_vae().encode(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(6, 4), (1, 5, 4), (1, 6, 0)])
def test_decode_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"latents has shape .*, expected \(B, 6, T\) with T > 0"):
        small_vae().decode(torch.zeros(shape))
