"""``triton-speech tiny-checkpoint``: a folder in, one sentence out."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from .registry import family_names

DEFAULT_FAMILY = "voxcpm2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the checkpoint is written")
    parser.add_argument("--family", choices=family_names(), default=DEFAULT_FAMILY, help="of the model (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default: 0)")
    parser.add_argument("--force", action="store_true", help="write even if DIR holds files already")


def run(args: argparse.Namespace) -> int:
    """Writes a tiny checkpoint of ``args.family`` to ``args.folder``; returns the exit code."""
    folder: Path = args.folder
    if folder.exists() and not folder.is_dir():
        print(f"{folder} is not a folder", file=sys.stderr)
        return 2
    if folder.is_dir() and any(folder.iterdir()) and not args.force:
        print(f"{folder} is not empty; --force writes into it", file=sys.stderr)
        return 2
    # Imported late: torch takes seconds, a refusal should not.
    tiny = import_module(f"triton_speech.families.{args.family}.tiny")
    tiny.write_tiny_checkpoint(folder, seed=args.seed)
    print(f"wrote a random {args.family} checkpoint of tiny size (seed {args.seed}) to {folder}")
    return 0
