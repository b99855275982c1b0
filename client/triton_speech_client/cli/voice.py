"""``triton-speech voice``: adds, lists, shows and removes the stored voices of a running server."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from triton_speech_client.grpc_client import SpeechClient
from triton_speech_client.voices import Voice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of ``voice`` and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="store a voice, in place of one of the same name")
    add.add_argument("name", help="A to Z, a to z, digits, - and _; at most 64")
    add.add_argument("--reference", type=Path, metavar="FILE", help="recording whose timbre to take")
    add.add_argument("--prompt", type=Path, metavar="FILE", help="recording to continue")
    add.add_argument("--prompt-text", metavar="TEXT", help="what is said in --prompt")
    add.add_argument("--family", help="model family, where the server has more than one")
    everything = actions.add_parser("list", help="list all voices, also those that cannot be used")
    show = actions.add_parser("show", help="show one voice")
    remove = actions.add_parser("remove", help="remove a stored voice")
    for action in (show, remove):
        action.add_argument("name")
    for action in (add, everything, show, remove):
        action.add_argument("--url", default="127.0.0.1:8001", help="host:port of Triton's gRPC (%(default)s)")
    for action in (everything, show):
        action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Does it; raises ``SpeechClientError`` when it cannot. 1 where an added or shown voice cannot be used."""
    with SpeechClient(args.url) as client:
        if args.action == "list":
            voices = client.voices()
            print(json.dumps([dataclasses.asdict(voice) for voice in voices], indent=2) if args.json else table(voices))
            return 0
        if args.action == "remove":
            client.remove_voice(args.name)
            print(f"removed {args.name}")
            return 0
        if args.action == "add":
            voice = client.add_voice(
                args.name,
                reference=args.reference,
                prompt_audio=args.prompt,
                prompt_text=args.prompt_text,
                family=args.family,
            )
            print(f"{'replaced' if voice.replaced else 'added'} {summary(voice)}")
        else:
            voice = client.voice(args.name)
            print(json.dumps(dataclasses.asdict(voice), indent=2) if args.json else details(voice))
    return 0 if voice.usable else 1


def table(voices: Sequence[Voice]) -> str:
    """One line for each voice under a line of titles."""
    rows = [("NAME", "FAMILY", "MODE", "CREATED", "VERSION", "")]
    rows += [
        (v.name, v.family, v.mode, v.created, v.version[:8], v.problem and f"unusable: it {v.problem}") for v in voices
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)) for row in rows]
    return "\n".join(_plain(line.rstrip()) for line in lines)


def summary(voice: Voice) -> str:
    """What a voice is made of, in one line."""
    frames = ", ".join(f"{count} frames of {name}" for name, count in voice.frames.items())
    state = f"; it cannot be used: it {voice.problem}" if voice.problem else ""
    return _plain(f"{voice.name} ({voice.family}, {voice.mode}): {frames}, version {voice.version[:8]}{state}")


def details(voice: Voice) -> str:
    """All that is known of a voice, one fact a line."""
    facts = {
        "name": voice.name,
        "family": voice.family,
        "mode": voice.mode,
        "version": voice.version,
        "created": voice.created,
        **{f"frames of {name}": str(count) for name, count in voice.frames.items()},
        **{f"SHA-256 of {name}": digest for name, digest in voice.sources.items()},
        "prompt text": voice.prompt_text or "",
        "unusable": voice.problem and f"it {voice.problem}",
    }
    facts = {name: value for name, value in facts.items() if value}
    width = max(map(len, facts))
    return "\n".join(_plain(f"{name.ljust(width)}  {value}") for name, value in facts.items())


def _plain(line: str) -> str:
    """The line without what would steer a terminal: names of files and texts are other people's."""
    return "".join(character if character.isprintable() else "?" for character in line)
