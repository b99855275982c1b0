"""``triton-speech manifest``: writes what ``triton-speech pull`` checks against."""

from __future__ import annotations

import argparse
from pathlib import Path

from triton_speech.pull.manifest import FILE_NAME, make_manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``manifest``."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="a checkpoint")
    parser.add_argument("--revision", required=True, metavar="NAME", help="how this state of it is called")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"default: {FILE_NAME} in DIR")


def run(args: argparse.Namespace) -> int:
    """Reads all files of the folder; raises ``PullError`` or ``OSError``."""
    manifest = make_manifest(args.folder, args.revision)
    output = args.output or args.folder / FILE_NAME
    output.write_text(manifest.to_json(), encoding="utf-8")
    print(f"{output}  revision {manifest.revision}, {len(manifest.files)} files, {manifest.total_bytes >> 20} MiB")
    return 0
