"""``triton-speech perf-analyzer``: input files for Triton's load generator, and first-response times of its export."""

from __future__ import annotations

import argparse
from pathlib import Path

from triton_speech_client.perf_analyzer.inputs import write_inputs
from triton_speech_client.perf_analyzer.report import EXPLANATION, read_export, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    inputs = actions.add_parser("inputs", help="write input files for every model of a running server")
    inputs.add_argument("folder", type=Path, help="where to write them; made where it is not there")
    inputs.add_argument("--url", default="127.0.0.1:8001", help="host:port of Triton's gRPC (%(default)s)")
    inputs.add_argument("--max-seconds", type=float, default=3.0, help="longest audio of a request (%(default)g)")
    report = actions.add_parser("report", help="first-response times of a --profile-export-file")
    report.add_argument("export", type=Path, nargs="+", metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Does it; raises ``SpeechClientError`` or ``OSError`` when it cannot."""
    if args.action == "inputs":
        args.folder.mkdir(parents=True, exist_ok=True)
        for one in write_inputs(args.folder, args.url, args.max_seconds):
            print(one.shell(args.url))
        return 0
    for path in args.export:
        print(f"{path.name}\n\n{table(read_export(path))}\n")
    print(EXPLANATION)
    return 0
