"""What the command writes, and when it does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

import triton_speech
from triton_speech.export import command, write
from triton_speech.export.check import differences
from triton_speech.export.tensorrt import TensorRTError
from triton_speech.export.triton_config import tensorrt_config
from triton_speech.export.write import OPSET, write_graph
from triton_speech.families.portable import PortableGraph
from triton_speech.families.voxcpm2.portable import NAMES, REFERENCE_ENCODER
from triton_speech_client.cli import main

# The first test that needs a graph waits for its export: a minute, on a busy machine several.
pytestmark = pytest.mark.timeout(900)

KINDS = {"TYPE_FP32": onnx.TensorProto.FLOAT, "TYPE_INT32": onnx.TensorProto.INT32}


def read(path: Path) -> Any:
    return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


def models(exported: Any) -> list[Path]:
    return sorted(path.parents[1] for path in exported.repository().glob("*/1/model.onnx"))


def test_every_graph_has_its_place_in_a_triton_repository(exported: Any) -> None:
    names = [path.name for path in models(exported)]
    assert names == sorted(NAMES)
    assert sorted(path.name for path in exported.repository().iterdir()) == names, "nothing is left of the writing"


def test_the_report_names_every_graph_and_says_that_it_is_equal(exported: Any) -> None:
    names = [path.name for path in models(exported)]
    said = "".join(exported.said.values())
    assert all(f"| {name} |" in said for name in names)
    assert all("equal within 0.0001" in part and "NOT" not in part for part in exported.said.values())


def test_a_configuration_declares_the_tensors_of_its_graph(exported: Any) -> None:
    for folder in models(exported):
        config, graph = read(folder / "config.pbtxt"), onnx.load(folder / "1" / "model.onnx").graph
        assert (config.name, config.backend) == (folder.name, "onnxruntime")
        state = config.sequence_batching.state
        declared = {one.name: (one.data_type, list(one.dims)) for one in (*config.input, *config.output)}
        declared |= {
            name: (one.data_type, list(one.dims)) for one in state for name in (one.input_name, one.output_name)
        }
        found = {}
        for value in (*graph.input, *graph.output):
            batch, *dims = value.type.tensor_type.shape.dim
            kind = next(name for name, kind in KINDS.items() if kind == value.type.tensor_type.elem_type)
            shape = [-1 if dim.dim_param else dim.dim_value for dim in dims]
            found[value.name] = (model_config_pb2.DataType.Value(kind), shape)
            assert batch.dim_param, "the batch is free"
        assert declared == found


def test_requests_are_batched_and_a_stream_keeps_its_state_in_the_server(exported: Any) -> None:
    for folder in models(exported):
        config = read(folder / "config.pbtxt")
        assert config.max_batch_size > 1
        assert config.WhichOneof("scheduling_choice") == (
            "sequence_batching" if folder.name == "voxcpm2_codec_step" else "dynamic_batching"
        )
        (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
        assert (accelerator.name, accelerator.parameters["precision_mode"]) == ("tensorrt", "FP32")
    config = read(exported.repository("codec") / "voxcpm2_codec_step" / "config.pbtxt")
    (state,) = config.sequence_batching.state
    (initial,) = state.initial_state
    assert (state.input_name, state.output_name, initial.zero_data) == ("STATE", "NEXT_STATE", True)
    assert list(initial.dims) == list(state.dims)


def test_an_engines_configuration_is_one_too(exported: Any) -> None:
    for folder in models(exported):
        text = tensorrt_config(exported.graph(folder.name), f"{folder.name}_tensorrt")
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        assert (config.name, config.backend) == (f"{folder.name}_tensorrt", "tensorrt")


def test_a_graph_is_of_the_opset_that_the_document_names_and_holds_no_path_of_this_machine(exported: Any) -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "export.md"
    assert f"opset {OPSET}" in document.read_text(encoding="utf-8")
    for folder in models(exported):
        content = (folder / "1" / "model.onnx").read_bytes()
        (opset,) = onnx.load_from_string(content).opset_import
        assert (opset.domain, opset.version) == ("", OPSET)
        for place in (Path(triton_speech.__file__).parent, Path(torch.__file__).parent, Path.home()):
            assert str(place).encode() not in content


def test_large_weights_lie_beside_the_graph(
    doubling: PortableGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "EXTERNAL_BYTES", 8)
    path = write_graph(doubling, tmp_path / "doubling")
    assert [file.name for file in sorted(path.parent.iterdir())] == ["model.onnx", "model.onnx.data"]
    assert all(one.is_equal for one in differences(doubling, path))


def test_a_graph_that_differs_is_not_written_and_the_one_before_it_stays(
    doubling: PortableGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "some"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps({"architecture": "voxcpm2"}), encoding="utf-8")
    words = ["export", "codec", "--onnx", str(tmp_path / "onnx"), "--checkpoint", str(checkpoint)]
    family = type("Family", (), {"ARCHITECTURE": "voxcpm2", "portable_graphs": lambda *_, **__: [doubling]})
    monkeypatch.setattr(command, "load_family", lambda _: family)
    assert main(words) == 0
    placed = tmp_path / "onnx" / "doubling" / "1" / "model.onnx"
    before = placed.stat().st_mtime_ns
    for wrong in (lambda x: (2 * x + 2e-4,), lambda x: (x * torch.nan,)):
        object.__setattr__(doubling, "torch", wrong)
        assert main(words) == 1
        assert "NOT EQUAL within 0.0001" in capsys.readouterr().out
        assert placed.stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "onnx").iterdir()] == ["doubling"]


@pytest.mark.parametrize("package", ["onnxruntime", "onnxscript"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    words = ["export", "reference", "--onnx", str(tmp_path), "--checkpoint", str(exported.checkpoint)]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert package in told
    assert "pip install 'triton-speech[onnx]'" in told
    assert not list(tmp_path.iterdir())


def test_where_tensorrt_is_missing_it_is_said_before_anything_is_written(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    words = ["export", "codec", "--onnx", str(tmp_path), "--checkpoint", str(exported.checkpoint), "--tensorrt"]
    assert main(words) == 1
    assert "--tensorrt needs TensorRT, which is not installed: pip install tensorrt" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_where_an_engine_cannot_be_built_what_was_there_stays(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise TensorRTError("TensorRT could not build it")

    monkeypatch.setattr(command, "tensorrt", lambda: None)
    monkeypatch.setattr(command, "build_engine", fail)
    old = tmp_path / REFERENCE_ENCODER / "1"
    old.mkdir(parents=True)
    (old / "model.onnx").write_bytes(b"old")
    words = ["export", "reference", "--onnx", str(tmp_path), "--checkpoint", str(exported.checkpoint), "--tensorrt"]
    assert main(words) == 1
    assert "TensorRT could not build it" in capsys.readouterr().err
    assert (old / "model.onnx").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == [REFERENCE_ENCODER]


def test_a_family_without_graphs_and_an_unknown_checkpoint_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vibevoice"}), encoding="utf-8")
    for choice, says in ((str(tmp_path), "family vibevoice has nothing for"), ("nobody", "checkpoint is 'nobody'")):
        assert main(["export", "codec", "--onnx", str(tmp_path / "onnx"), "--checkpoint", choice]) == 1
        assert says in capsys.readouterr().err


def test_a_step_count_out_of_range_is_refused(
    exported: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "dit", "--onnx", str(tmp_path), "--checkpoint", str(exported.checkpoint), "--steps", "101"]
    assert main(words) == 1
    assert "INFERENCE_STEPS: 101 is out of range" in capsys.readouterr().err


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main(["export", "reference", "--onnx", str(place)]) == 1
        assert f"--onnx {place} cannot be made a folder: " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_graphs_place_that_is_no_folder_is_named_and_kept(doubling: PortableGraph, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "doubling"
    if kind == "file":
        place.write_text("kept")
    else:
        place.symlink_to(tmp_path)
    with pytest.raises(ValueError, match="doubling is not a folder"):
        command._export(doubling, tmp_path, False)
    assert list(tmp_path.iterdir()) == [place]
