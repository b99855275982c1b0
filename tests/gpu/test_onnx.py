"""Exported graphs on a GPU: ONNX Runtime's CUDA provider, and TensorRT's engines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from triton_speech.export.check import LIMIT
from triton_speech.export.tensorrt import build_engine
from triton_speech.families.onnx_session import graph_path
from triton_speech.families.voxcpm2.codec import VoxCPM2Codec
from triton_speech.families.voxcpm2.onnx_codec import OnnxCodec
from triton_speech.families.voxcpm2.portable import CODEC_STEP, codec_graphs

QUICKSTART = Path(__file__).resolve().parents[2] / "checkpoints" / "quickstart"


def test_the_codec_on_cuda_equals_torch(quickstart_codec_graphs: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" not in runtime.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA")
    ours = OnnxCodec(QUICKSTART, quickstart_codec_graphs, slots=4, device="cuda:0")
    theirs = VoxCPM2Codec.from_checkpoint(QUICKSTART, slots=4)
    source = torch.Generator().manual_seed(0)
    for patches in (1, 2, 1, 8):
        given = torch.randn(3, patches, *theirs.patch_shape, generator=source)
        assert (ours.decode(given, [3, 1, 2]) - theirs.decode(given, [3, 1, 2])).abs().max() < LIMIT


def test_an_engine_is_built(quickstart_codec_graphs: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt")
    step = codec_graphs(QUICKSTART, 10)[0]
    engine = build_engine(step, graph_path(quickstart_codec_graphs, CODEC_STEP), tmp_path / "engine")
    assert engine.stat().st_size > 0
    assert (tmp_path / "engine" / "config.pbtxt").is_file()
