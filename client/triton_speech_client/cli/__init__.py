"""The command line ``triton-speech``: a table of commands, of which only the chosen one is imported."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple

from triton_speech.errors import SpeechError
from triton_speech_client.errors import SpeechClientError

EXIT_FAILED = 1
EXIT_CANNOT_START = 2
EXIT_INTERRUPTED = 130  # what a shell reports of a command that SIGINT ended


class Command(NamedTuple):
    """A module with ``add_arguments(parser)`` and ``run(args) -> int``, and the extra that it needs."""

    module: str
    help: str
    extra: str


COMMANDS = {
    "batch": Command("triton_speech_client.cli.batch", "speak every line of a file into a file of its own", "client"),
    "bench": Command(
        "triton_speech_client.bench.command", "put load on a server and measure what callers hear", "bench"
    ),
    "demo": Command("triton_speech_client.cli.demo", "start a server, speak one sentence into a file, stop", "server"),
    "export": Command("triton_speech.export.command", "write parts of a checkpoint as ONNX, for other servers", "onnx"),
    "gateway": Command(
        "triton_speech_client.gateway.command", "serve OpenAI's speech API, live text and a page", "gateway"
    ),
    "health": Command("triton_speech_client.cli.health", "tell whether a server is ready, and what is wrong", "client"),
    "manifest": Command(
        "triton_speech.pull.manifest_command", "write a checkpoint's checksums, for pull to check", "server"
    ),
    "perf-analyzer": Command(
        "triton_speech_client.perf_analyzer.command", "input files and reports for Triton's perf_analyzer", "client"
    ),
    "pull": Command("triton_speech.pull.command", "bring a checkpoint here, by revision and checked", "server"),
    "say": Command("triton_speech_client.cli.say", "speak a text into a file or to the loudspeaker", "client"),
    "serve": Command("triton_speech.serve.command", "start Triton with the speech pipelines", "server"),
    "tiny-checkpoint": Command(
        "triton_speech.families.tiny_command",
        "write a tiny checkpoint of random weights, to try the server without a model",
        "server",
    ),
    "train": Command(
        "triton_speech.families.voxcpm2.training.command", "make a small voice, in as many runs as it takes", "train"
    ),
    "voice": Command("triton_speech_client.cli.voice", "add, list, show and remove the voices of a server", "client"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; what goes wrong is told in one sentence on stderr.

    1: the command failed. 2: it cannot start, for wrong arguments or a package that is not installed.
    130: interrupted.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    chosen = next((word for word in arguments if not word.startswith("-")), "")
    try:
        return _run(chosen, arguments)
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if chosen not in COMMANDS or package in ("triton_speech", "triton_speech_client"):
            raise
        extra = COMMANDS[chosen].extra
        install = f"pip install 'triton-speech[{extra}]'"
        return _fail(f"'{chosen}' needs {package}, which is not installed: {install}", EXIT_CANNOT_START)
    except (SpeechClientError, SpeechError, OSError, ValueError) as e:
        return _fail(str(e), EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)


def _run(chosen: str, arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("triton-speech", description="Streaming speech on NVIDIA Triton.")
    parser.add_argument("--version", action="version", version=version("triton-speech"))
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = None
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.help, description=_sentence(command.help))
        if name == chosen:
            module = import_module(command.module)
            module.add_arguments(subparser)
            run = module.run
    args = parser.parse_args(arguments)
    return int(run(args)) if run else EXIT_CANNOT_START


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _fail(message: str, code: int) -> int:
    print(f"triton-speech: {message}", file=sys.stderr)
    return code
