"""The published size, and what is said of a checkpoint that does not fit."""

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from triton_speech.families.checkpoint_tensors import CheckpointError
from triton_speech.families.voxcpm2.checkpoint import load_audio_vae, load_talker
from triton_speech.families.voxcpm2.config import VoxCPM2Config
from triton_speech.families.voxcpm2.model import VoxCPM2Talker
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "voxcpm2"
NAME = "base_lm.layers.0.mlp.down_proj.weight"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "tiny")


def change(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> Path:
    """Edits the talker's tensors in place."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_names_and_shapes_are_those_of_the_published_checkpoint() -> None:
    if not (PUBLISHED / "manifest.json").is_file():
        pytest.skip("the published manifest is not at hand (shared/data/voxcpm2 beside the repository)")
    manifest = json.loads((PUBLISHED / "manifest.json").read_text(encoding="utf-8"))
    with torch.device("meta"):
        model = VoxCPM2Talker(VoxCPM2Config.from_checkpoint(PUBLISHED))
    expected = {name: tuple(entry["shape"]) for name, entry in manifest.items() if name != "__metadata__"}
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == expected
    assert len(expected) == 577
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_290_004_544


def test_a_missing_tensor_is_named(tiny: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"model\.safetensors of checkpoint 'tiny' .* missing: {NAME}$"):
        load_talker(change(tiny, lambda tensors: tensors.pop(NAME)))


def test_a_surplus_tensor_is_named(tiny: Path) -> None:
    with pytest.raises(CheckpointError, match=r"surplus: base_lm\.lora_A$"):
        load_talker(change(tiny, lambda tensors: tensors.update({"base_lm.lora_A": torch.zeros(2)})))


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(tiny: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"wrong shape: {NAME} is \(3, 5\), must be \(64, 128\)$"):
        load_talker(change(tiny, lambda tensors: tensors.update({NAME: torch.zeros(3, 5)})))


def test_all_kinds_of_difference_are_told_at_once(tiny: Path) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        del tensors["stop_head.weight"]
        tensors |= {"extra": torch.zeros(1), NAME: torch.zeros(1)}

    with pytest.raises(CheckpointError, match=r"missing: stop_head\.weight; surplus: extra; wrong shape: base_lm"):
        load_talker(change(tiny, edit))


def test_a_long_list_is_cut_and_counted(tiny: Path) -> None:
    extra = {f"extra.{index:02}": torch.zeros(1) for index in range(11)}
    with pytest.raises(CheckpointError, match=r"surplus: extra\.00, .*extra\.07 and 3 more$"):
        load_talker(change(tiny, lambda tensors: tensors.update(extra)))


@pytest.mark.parametrize("kept", [0, 4, 100, 100_000])
def test_a_truncated_model_file_is_called_damaged(tiny: Path, kept: int) -> None:
    file = tiny / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors of checkpoint 'tiny' is damaged"):
        load_talker(tiny)


def test_a_missing_model_file_is_named(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"checkpoint 'tiny' has no model\.safetensors$"):
        load_talker(tiny)


@pytest.mark.parametrize("kept", [0, 4, 100, 100_000])
def test_a_truncated_audio_vae_is_called_damaged(tiny: Path, kept: int) -> None:
    file = tiny / "audiovae.pth"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"audiovae\.pth of checkpoint 'tiny' is damaged"):
        load_audio_vae(tiny)


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"}}"], ids=["not a text", "another instruction"])
def test_an_audio_vae_with_changed_bytes_is_called_damaged(tiny: Path, damage: bytes) -> None:
    """The reader of pickles raises whatever it stumbles over."""
    file, name = tiny / "audiovae.pth", b"X\x12\x00\x00\x00encoder.fc_mu.bias"
    content = file.read_bytes()
    assert content.count(name) == 1
    start = content.index(name) + (5 if damage[0] > 0x7F else 0)
    file.write_bytes(content[:start] + damage + content[start + len(damage) :])
    with pytest.raises(CheckpointError, match=r"audiovae\.pth of checkpoint 'tiny' is damaged"):
        load_audio_vae(tiny)


class Payload:
    """Unpickled, it would create a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("zipped", [True, False], ids=["torch archive", "bare pickle"])
def test_code_in_a_pickle_is_refused_and_not_run(tiny: Path, tmp_path: Path, zipped: bool) -> None:
    content = {"state_dict": {"encoder.fc_mu.bias": Payload(tmp_path / "ran")}}
    if zipped:
        torch.save(content, tiny / "audiovae.pth")
    else:
        (tiny / "audiovae.pth").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(CheckpointError, match=r"audiovae\.pth of checkpoint 'tiny' .*holds more than tensors"):
        load_audio_vae(tiny)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content", [[1, 2], torch.zeros(3), {"state_dict": 7}, {"state_dict": {}}, {1: torch.zeros(1)}]
)
def test_a_pickle_of_something_else_is_refused(tiny: Path, content: object) -> None:
    torch.save(content, tiny / "audiovae.pth")
    with pytest.raises(CheckpointError, match=r"audiovae\.pth of checkpoint 'tiny'"):
        load_audio_vae(tiny)


def test_an_audio_vae_without_the_outer_state_dict_loads(tiny: Path) -> None:
    bare = torch.load(tiny / "audiovae.pth", weights_only=True)["state_dict"]
    expected = load_audio_vae(tiny).state_dict()
    torch.save(bare, tiny / "audiovae.pth")
    found = load_audio_vae(tiny).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_an_audio_vae_in_safetensors_is_preferred(tiny: Path) -> None:
    tensors = torch.load(tiny / "audiovae.pth", weights_only=True)["state_dict"]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tiny / "audiovae.safetensors")
    (tiny / "audiovae.pth").write_bytes(b"not read")
    load_audio_vae(tiny)


def test_a_checkpoint_without_audio_vae_is_refused(tiny: Path) -> None:
    (tiny / "audiovae.pth").unlink()
    with pytest.raises(FileNotFoundError, match=r"has neither audiovae\.safetensors nor audiovae\.pth"):
        load_audio_vae(tiny)


def test_a_missing_part_of_the_audio_vae_is_named(tiny: Path) -> None:
    tensors = torch.load(tiny / "audiovae.pth", weights_only=True)["state_dict"]
    del tensors["encoder.fc_mu.weight_g"]
    buffer = io.BytesIO()
    torch.save({"state_dict": tensors}, buffer)
    (tiny / "audiovae.pth").write_bytes(buffer.getvalue())
    with pytest.raises(CheckpointError, match=r"missing: encoder\.fc_mu\.weight_g$"):
        load_audio_vae(tiny)
