"""``triton-speech train``: makes a voice in a folder, in as many runs as it takes."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from .clock import Clock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from .run import STAGES

    parser.description = (
        "Goes on with the voice in FOLDER as its settings.json says: texts, the teacher's speech, the AudioVAE, its "
        "decoder against judges, the talker, the checkpoint. Run it again to go on where it stopped."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--new", type=Path, metavar="BASE", help="begin: write settings.json for the size of this checkpoint"
    )
    parser.add_argument("--held-out", type=Path, help="with --new: JSON file of sentences that no text may have")
    parser.add_argument("--wordnet", type=Path, help="with --new: folder of WordNet 3.0's data files")
    parser.add_argument("--word-list", type=Path, help="with --new: file of words")
    parser.add_argument(
        "--portable",
        action="store_true",
        help="with --new: put the teacher into FOLDER, at half its size, for a machine without its package",
    )
    parser.add_argument("--seconds", type=float, help="stop in time and keep the state; without it until all is done")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="only these")
    parser.add_argument(
        "--compact", type=Path, metavar="DIR", help="at the end, write states of a sixth to an eighth of the size"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="at the end, write a PNG of all curves")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes for speech")
    parser.add_argument(
        "--compile", action="store_true", help="compile the training steps: a minute or two at the start"
    )


def run(args: argparse.Namespace) -> int:
    import torch

    from .loop import compact
    from .run import SAVING_SECONDS, Machine, Run

    clock = Clock(None if args.seconds is None else args.seconds - SAVING_SECONDS)
    if args.new is not None:
        _begin(args)
    name = args.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    machine = Machine(torch.device(name), args.workers, args.compile)
    done = Run(args.folder, machine).run(tuple(args.stages), clock)
    if args.compact is not None:
        compact(args.folder / "state", args.compact)
    if args.plot is not None:
        from .plot import write_plot

        write_plot(args.folder / "state", args.plot)
    print("done" if done else "not done: run it again to go on", flush=True)
    return 0


def _begin(args: argparse.Namespace) -> None:
    from .teacher import bundled_teacher, halve

    settings = args.folder / "settings.json"
    if settings.exists():
        raise ValueError(f"{settings} exists: leave out --new to go on with it")
    args.folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"base": _from(args.folder, args.new)}
    if args.portable:
        content["teacher"] = "teacher.onnx"
        halve(bundled_teacher(), args.folder / "teacher.onnx")
    texts = {"held_out": args.held_out, "wordnet": args.wordnet, "word_list": args.word_list}
    content["texts"] = {name: _from(args.folder, path) for name, path in texts.items() if path is not None}
    settings.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _from(folder: Path, path: Path) -> str:
    """``path`` as seen from ``folder``: both can be moved together."""
    return os.path.relpath(path, folder)
