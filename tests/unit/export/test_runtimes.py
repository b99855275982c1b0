"""What stages run in torch's place: the same signature, the same values, and only on graphs of the same checkpoint."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_speech.export.check import LIMIT
from triton_speech.families.onnx_session import OnnxSession
from triton_speech.families.voxcpm2 import load_diffusion, load_onnx_codec, load_onnx_diffusion
from triton_speech.families.voxcpm2.onnx_solver import OnnxFlowMatching
from triton_speech.families.voxcpm2.portable_dit import load_solver
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint

# The first test that needs a graph waits for its export: a minute, on a busy machine several.
pytestmark = pytest.mark.timeout(900)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("cutoff_ratio", [1.0, 0.5])
def test_the_solver_takes_any_step_counts_guidance_and_cutoff(exported: Any, cutoff_ratio: float) -> None:
    ours, theirs = (
        OnnxFlowMatching.from_checkpoint(exported.checkpoint, exported.repository("dit")),
        load_solver(exported.checkpoint),
    )
    ours.cutoff_ratio = theirs.cutoff_ratio = cutoff_ratio
    given = draw(5, 2, 8), draw(5, 64, seed=1), draw(5, 2, 8, seed=2), torch.tensor([0.0, 1.0, 2.0, 3.0, 1.5])
    counts = torch.tensor([2, 10, 5, 50, 3])
    kept = [tensor.clone() for tensor in given]
    solved = ours.solve(*given, counts, most=50)
    assert (solved - theirs.solve(*given, counts, most=50)).abs().max() < LIMIT
    assert all(torch.equal(tensor, before) for tensor, before in zip(given, kept, strict=True))


def test_the_diffusion_for_a_stage_equals_torch(exported: Any) -> None:
    ours = load_onnx_diffusion(exported.checkpoint, exported.repository("dit"), cfg_cutoff_ratio=0.5)
    theirs = load_diffusion(exported.checkpoint, device="cpu", dtype="float32", cfg_cutoff_ratio=0.5)
    assert (ours.patch_shape, ours.mu_size) == (theirs.patch_shape, theirs.mu_size)
    whole = torch.arange(4).unsqueeze(1)
    rows = {"MU": draw(4, ours.mu_size), "COND": draw(4, *ours.patch_shape), "SEED": whole, "POSITION": whole + 1}
    rows |= {"CFG_VALUE": whole.float(), "INFERENCE_STEPS": torch.full((4, 1), 10)}
    ours.warm_up()
    made = ours.solve(rows, 10)
    assert made.isfinite().all()
    assert (made - theirs.solve(rows, 10)).abs().max() < LIMIT


def test_the_solver_gives_the_dtype_of_its_noise(exported: Any) -> None:
    solver = OnnxFlowMatching.from_checkpoint(exported.checkpoint, exported.repository("dit"))
    given = (tensor.bfloat16() for tensor in (draw(1, 2, 8), draw(1, 64), draw(1, 2, 8)))
    assert solver.solve(*given, torch.tensor([2.0]), torch.tensor([4]), 4).dtype == torch.bfloat16


def test_graphs_of_another_checkpoint_are_refused(exported: Any, tmp_path: Path) -> None:
    """They would speak, and in another voice."""
    other = write_tiny_checkpoint(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match=r"graph voxcpm2_codec_step was not made of checkpoint 'other'.*export codec"):
        load_onnx_codec(other, exported.repository("codec"), slots=2)
    with pytest.raises(ValueError, match=r"graph voxcpm2_dit_round was not made of checkpoint 'other'.*export dit"):
        OnnxFlowMatching.from_checkpoint(other, exported.repository("dit"))


def test_where_no_graph_was_exported_the_command_is_named(exported: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="triton-speech export codec --checkpoint tiny --onnx DIR"):
        load_onnx_codec(exported.checkpoint, tmp_path, slots=2)


def test_a_graph_that_is_cut_short_is_named(exported: Any, tmp_path: Path) -> None:
    shutil.copytree(exported.repository("codec"), tmp_path / "onnx")
    path = tmp_path / "onnx" / "voxcpm2_codec_step" / "1" / "model.onnx"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="is not a graph that ONNX Runtime can load"):
        load_onnx_codec(exported.checkpoint, tmp_path / "onnx", slots=2)


def test_without_onnx_runtime_the_codec_says_what_to_install(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'triton-speech\[onnx\]'.*onnxruntime-gpu"):
        load_onnx_codec(exported.checkpoint, exported.repository("codec"), slots=2)


def test_a_gpu_is_not_silently_replaced_by_the_cpu(exported: Any) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(ValueError, match=r"device is 'cuda:0'.*pip install onnxruntime-gpu; or set device to 'cpu'"):
        OnnxSession(exported.path("voxcpm2_codec_step"), device="cuda:0")


def test_a_tensor_that_the_graph_would_misread_is_refused(exported: Any) -> None:
    session = OnnxSession(exported.path("voxcpm2_codec_decode"))
    latents, audio = draw(2, 3, 2, 8).transpose(0, 1), torch.empty(3, 2 * 3840)
    with pytest.raises(ValueError, match="not contiguous"):
        session.run({"LATENTS": latents}, {"AUDIO": audio})
