"""A checkpoint saved by upstream loads here, one of ours loads there, and no tensor changes on the way."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from triton_speech.families.voxcpm2.audio_vae import unfold_weight_norm
from triton_speech.families.voxcpm2.checkpoint import load_audio_vae, load_talker, save_checkpoint
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

HERE = Path(__file__).parent
COMMITTED = HERE / "data" / "checkpoint"


def read_talker(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def read_vae(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "audiovae.pth", weights_only=True)["state_dict"]


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_upstreams_checkpoint_loads_here_and_every_weight_is_what_upstream_saved(golden: Any) -> None:
    assert_same(load_talker(golden.checkpoint, fused=False).state_dict(), read_talker(golden.checkpoint))


def test_upstreams_audio_vae_loads_here_and_is_the_same_up_to_rounding_of_its_norms(golden: Any) -> None:
    vae = load_audio_vae(golden.checkpoint)
    ours, theirs = unfold_weight_norm(vae.state_dict(), vae), read_vae(golden.checkpoint)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        # Folded weights are directions times lengths; unfolding finds another pair of the same product.
        if name.endswith("weight_v"):
            tensor = torch._weight_norm(tensor, theirs[f"{name[:-1]}g"], 0)
        assert torch.allclose(ours[name], tensor, rtol=1e-6, atol=1e-7), name


def test_the_committed_checkpoint_is_the_tiny_one_of_its_seed(tmp_path: Path) -> None:
    """So upstream kept all that we gave it, and random weights have not changed since."""
    spec = importlib.util.spec_from_file_location("tiny_for_parity", HERE / "tiny_for_parity.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    recipe.write(tmp_path)
    assert_same(read_talker(tmp_path), read_talker(COMMITTED))
    assert_same(read_vae(tmp_path), read_vae(COMMITTED))
    for file in COMMITTED.glob("*.json"):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_our_checkpoint_loads_upstream_and_comes_back_unchanged(upstream: Callable[..., None], tmp_path: Path) -> None:
    ours = write_tiny_checkpoint(tmp_path / "ours", seed=11)
    upstream(ours, tmp_path, "--only-checkpoint")
    assert_same(read_talker(tmp_path / "checkpoint"), read_talker(ours))
    assert_same(read_vae(tmp_path / "checkpoint"), read_vae(ours))


def test_a_checkpoint_that_was_loaded_and_saved_here_loads_upstream(
    golden: Any, upstream: Callable[..., None], tmp_path: Path
) -> None:
    config = (golden.checkpoint / "config.json").read_text(encoding="utf-8")
    talker, vae = load_talker(golden.checkpoint, fused=False), load_audio_vae(golden.checkpoint)
    save_checkpoint(tmp_path / "ours", config, talker, vae)
    for file in golden.checkpoint.glob("*token*.json"):
        (tmp_path / "ours" / file.name).write_bytes(file.read_bytes())
    upstream(tmp_path / "ours", tmp_path, "--only-checkpoint")
    assert_same(read_talker(tmp_path / "checkpoint"), read_talker(golden.checkpoint))
    assert_same(read_vae(tmp_path / "checkpoint"), read_vae(tmp_path / "ours"))
