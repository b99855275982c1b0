"""``triton-speech export``: a part of a checkpoint as ONNX, held against torch, with what Triton needs to serve it."""

from __future__ import annotations

import argparse
import importlib
import tempfile
from pathlib import Path

import triton_speech
from triton_speech.export.check import LIMIT, differences, report
from triton_speech.export.tensorrt import build_engine, tensorrt
from triton_speech.export.write import OPSET, write_graph
from triton_speech.families.portable import PortableGraph
from triton_speech.families.registry import architecture_of, family_names, find_checkpoint, load_family, optional_part

PARTS = ("codec", "dit", "reference")
_USUAL_FAMILY = "voxcpm2"
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``export``."""
    add = parser.add_argument
    add("part", choices=PARTS, help="of the model")
    add("--onnx", type=Path, required=True, metavar="DIR", help="a Triton repository: DIR/<graph>/1/model.onnx")
    add(
        "--checkpoint",
        default="auto",
        metavar="NAME_OR_DIR",
        help="a folder, or the name of one in checkpoints/ (default: the only VoxCPM2 one there)",
    )
    add("--steps", type=int, default=10, metavar="N", help="most diffusion steps of dit (default: %(default)s)")
    add("--tensorrt", action="store_true", help="build engines too, for this GPU: DIR/<graph>_tensorrt/1/model.plan")


def run(args: argparse.Namespace) -> int:
    """Exports. Returns 0, or 1 where a graph differs from torch; that one is not written."""
    folder = _checkpoint(args.checkpoint)
    family = load_family(str(architecture_of(folder)))
    graphs_of = optional_part(family, "portable_graphs", "export asks for portable graphs")
    for package in _PACKAGES:  # before a minute is spent on tracing
        importlib.import_module(package)
    if args.tensorrt:
        tensorrt()
    try:
        args.onnx.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--onnx {args.onnx} cannot be made a folder: {error.strerror}") from error
    written = [_export(graph, args.onnx, args.tensorrt) for graph in graphs_of(args.part, folder, steps=args.steps)]
    print(f"{'equal' if all(written) else 'NOT EQUAL'} within {LIMIT:g} (fp32, ONNX Runtime on the CPU, opset {OPSET})")
    return 0 if all(written) else 1


def _export(graph: PortableGraph, repository: Path, with_engine: bool) -> bool:
    """Writes beside the place, checks, and only then puts it there: a server may be watching the repository."""
    for place in (repository / graph.name, repository / f"{graph.name}_tensorrt"):
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise ValueError(f"{place} is not a folder: only a folder can be replaced by a graph")
    with tempfile.TemporaryDirectory(prefix=".export-", dir=repository) as beside:
        fresh, engine = Path(beside) / graph.name, Path(beside) / f"{graph.name}_tensorrt"
        path = write_graph(graph, fresh)
        found = differences(graph, path)
        print(report(found))
        if not all(one.is_equal for one in found):
            return False
        if with_engine:
            build_engine(graph, path, engine)
        for made in (fresh, engine) if with_engine else (fresh,):
            place = _put(made, repository)
            size = sum(file.stat().st_size for file in place.glob("1/*"))
            print(f"{place}  {size >> 10} KiB")
    return True


def _put(made: Path, repository: Path) -> Path:
    """What was there goes to where ``made`` comes from: nobody sees half of it."""
    place = repository / made.name
    if place.exists():
        place.rename(made.with_name(f"{made.name}.before"))
    return made.rename(place)


def _checkpoint(choice: str) -> Path:
    """A folder with ``config.json``, or one in this checkout's ``checkpoints/`` by its name."""
    if (Path(choice) / "config.json").is_file():
        folder = Path(choice).resolve()
        if architecture_of(folder) not in family_names():
            raise ValueError(f"--checkpoint {choice} is of {architecture_of(folder)}, which is no family here")
        return folder
    root = Path(triton_speech.__file__).resolve().parents[2] / "checkpoints"
    if choice == "auto" or architecture_of(root / choice) not in family_names():
        return find_checkpoint(root, choice, _USUAL_FAMILY)
    return root / choice
