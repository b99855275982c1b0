"""The tiny checkpoint: in the published one's format, deterministic, and lively enough to test with."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from triton_speech.families.voxcpm2.audio_vae import checkpoint_tensors
from triton_speech.families.voxcpm2.checkpoint import load_audio_vae, load_talker
from triton_speech.families.voxcpm2.config import VoxCPM2Config
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.families.voxcpm2.tokenizer import Tokenizer

FILES = {
    "config.json",
    "model.safetensors",
    "audiovae.pth",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
}
PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "voxcpm2" / "config.json"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


def shape_of(value: object) -> object:
    """The fields of a configuration, without what they hold."""
    if isinstance(value, dict):
        return {name: shape_of(item) for name, item in value.items()}
    return [] if isinstance(value, list) else None


def test_it_has_the_files_of_a_checkpoint(tiny: Path) -> None:
    assert {file.name for file in tiny.iterdir()} == FILES


def test_it_is_small(tiny: Path) -> None:
    assert sum(file.stat().st_size for file in tiny.iterdir()) < 3_000_000


def test_its_configuration_is_valid_and_keeps_the_real_rates(tiny: Path) -> None:
    config = VoxCPM2Config.from_checkpoint(tiny)
    assert config.frames_per_second == 12.5
    assert (config.audio_vae_config.sample_rate, config.audio_vae_config.out_sample_rate) == (16_000, 48_000)
    assert config.residual_lm_no_rope


def test_its_configuration_has_exactly_the_published_fields(tiny: Path) -> None:
    if not PUBLISHED.exists():
        pytest.skip("the published config.json is not at hand (shared/data/voxcpm2 beside the repository)")
    published, own = (json.loads(file.read_text(encoding="utf-8")) for file in (PUBLISHED, tiny / "config.json"))
    assert shape_of(own) == shape_of(published)


def test_its_vocabulary_fits_the_embedding(tiny: Path) -> None:
    assert Tokenizer.from_checkpoint(tiny).size == VoxCPM2Config.from_checkpoint(tiny).lm_config.vocab_size


def test_its_tokenizer_reads_back_what_was_written(tiny: Path) -> None:
    tokenizer = Tokenizer.from_checkpoint(tiny)
    text = "Hello, the 你好世界! Ärger 氣 😀"
    names = [tokenizer.token(index) or "" for index in tokenizer.encode(text)]
    data = b"".join(
        bytes([int(name[3:5], 16)]) if len(name) == 6 and name.startswith("<0x") else name.encode() for name in names
    )
    assert data.decode().replace("▁", " ") == " " + text
    assert "▁the" in names
    assert "你好" not in names


def test_its_autoencoder_is_stored_with_weight_norm(tiny: Path) -> None:
    stored = torch.load(tiny / "audiovae.pth", weights_only=True)["state_dict"]
    expected = checkpoint_tensors(VoxCPM2Config.from_checkpoint(tiny).audio_vae_config)
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == expected
    assert any(name.endswith("weight_g") for name in stored)


def test_the_same_seed_gives_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    again = write_tiny_checkpoint(tmp_path / "again")
    for name in FILES:
        assert (again / name).read_bytes() == (tiny / name).read_bytes(), name


def test_another_seed_gives_other_weights_of_the_same_shapes(tiny: Path, tmp_path: Path) -> None:
    one = load_file(tiny / "model.safetensors")
    two = load_file(write_tiny_checkpoint(tmp_path, seed=1) / "model.safetensors")
    assert {name: t.shape for name, t in one.items()} == {name: t.shape for name, t in two.items()}
    assert not any(torch.equal(one[name], two[name]) for name in one)


def test_writing_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    write_tiny_checkpoint(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_its_audio_is_audible_and_not_clipped(tiny: Path) -> None:
    vae = load_audio_vae(tiny)
    latents = torch.randn(1, 8, 50, generator=torch.Generator().manual_seed(0))
    audio = vae.decode(latents)
    assert audio.shape == (1, 50 * 1920)
    assert 0.05 < audio.std() < 0.5
    assert audio.abs().max() < 1
    assert 0.05 < vae.encode(audio[:, ::3]).std() < 5


def attend_causal(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention inside each sequence, nothing cached: q (B, T, heads, d) -> (B, T, heads, d)."""
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    return out.transpose(1, 2)


@pytest.mark.parametrize(("stops_at_once", "share"), [(False, 0.0), (True, 1.0)])
def test_its_streams_stop_as_asked(tmp_path: Path, stops_at_once: bool, share: float) -> None:
    talker = load_talker(write_tiny_checkpoint(tmp_path, stops_at_once=stops_at_once))
    source = torch.Generator().manual_seed(0)
    inputs = talker.encode_patches(torch.randn(200, 2, 8, generator=source))
    state, _ = talker.hidden(inputs[None], torch.ones(1, 200, dtype=torch.bool), torch.arange(200)[None], attend_causal)
    go_on, stop = talker.stop_logits(state).unbind(-1)
    assert (stop > go_on).float().mean() == share


def test_overrides_are_merged_into_the_configuration(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, max_length=64, lm_config={"num_hidden_layers": 3})
    config = VoxCPM2Config.from_checkpoint(folder)
    assert (config.max_length, config.lm_config.num_hidden_layers, config.lm_config.hidden_size) == (64, 3, 64)
    load_talker(folder)


def test_weights_have_the_dtype_of_the_configuration(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, dtype="bfloat16")
    assert {t.dtype for t in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("override", "named"), [({"max_len": 3}, "max_len"), ({"lm_config": {"layers": 3}}, r"lm_config\.layers")]
)
def test_an_override_of_no_field_is_refused(tmp_path: Path, override: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=rf"config\.json has no field {named}"):
        write_tiny_checkpoint(tmp_path, **override)
