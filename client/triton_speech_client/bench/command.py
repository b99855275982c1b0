"""``triton-speech bench``: load on a running server, and what its callers hear of it."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from triton_speech_client.bench.load import LoadProcesses, Run
from triton_speech_client.bench.output import remarks, table, write_csv, write_json
from triton_speech_client.bench.speakers import Target
from triton_speech_client.bench.streams import DEFINITIONS, Job
from triton_speech_client.bench.summary import figures
from triton_speech_client.bench.texts import LENGTHS, bundled_texts, texts_of_file
from triton_speech_client.errors import InvalidRequest, ServerUnavailable
from triton_speech_client.grpc_client import SpeechClient

READY_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``bench``."""
    load = parser.add_argument_group("load")
    kind = load.add_mutually_exclusive_group()
    kind.add_argument(
        "--concurrency", type=int, nargs="+", metavar="N", help="closed loop: callers at once, level by level (1)"
    )
    kind.add_argument("--rate", type=float, nargs="+", metavar="R", help="open loop: Poisson arrivals a second")
    load.add_argument("--duration", type=float, default=30.0, help="seconds of a level that count (%(default)g)")
    load.add_argument("--warmup", type=float, default=5.0, help="seconds of load before, thrown away (%(default)g)")
    load.add_argument("--processes", type=int, default=1, help="load processes (%(default)s)")
    load.add_argument("--seed", type=int, default=0, help="of the arrivals, and of the first request (%(default)s)")
    server = parser.add_argument_group("server")
    server.add_argument("--url", default="127.0.0.1:8001", help="host:port of Triton's gRPC (%(default)s)")
    server.add_argument("--gateway", metavar="URL", help="through a gateway instead, such as http://127.0.0.1:8080")
    server.add_argument("--api-key", default="", help="of the gateway")
    server.add_argument("--pipeline", default="voxcpm2", help="model to ask (%(default)s)")
    server.add_argument("--deadline", type=float, metavar="S", help="longest time for a request")
    speech = parser.add_argument_group("speech")
    speech.add_argument(
        "--texts", nargs="+", choices=LENGTHS, default=["medium"], help="lengths of the bundled texts (medium)"
    )
    speech.add_argument("--text-file", type=Path, metavar="FILE", help="one text a line instead")
    speech.add_argument("--voice", help="name of a stored voice")
    speech.add_argument("--reference", type=Path, metavar="FILE", help="recording to send with every request")
    speech.add_argument("--steps", type=int, metavar="N", help="diffusion steps of a frame")
    speech.add_argument("--max-seconds", type=float, metavar="S", help="longest audio")
    results = parser.add_argument_group("results")
    results.add_argument(
        "--player-buffer", type=float, default=0.0, metavar="S", help="of the player that judges what is clean (0)"
    )
    results.add_argument("--json", type=Path, metavar="FILE", help="write settings, definitions and figures")
    results.add_argument("--csv", type=Path, metavar="FILE", help="write one line for each request")
    results.add_argument("--plot", type=Path, metavar="FILE", help="write a PNG; needs matplotlib")


def run(args: argparse.Namespace) -> int:
    """Measures; 1 where every request of a level failed or none was due. Raises ``SpeechClientError``, ``OSError``."""
    mode, levels = ("rate", args.rate) if args.rate else ("concurrency", args.concurrency or [1])
    _check(args, levels)
    if args.plot:
        plot = import_module("triton_speech_client.bench.plot")  # that it is absent is told before the load
    texts = texts_of_file(args.text_file) if args.text_file else bundled_texts(args.texts)
    target = _target(args)
    if not args.gateway:
        with SpeechClient(args.url, args.pipeline) as client:
            client.wait_ready(READY_SECONDS)

    def job(index: int) -> Job:
        return Job(texts[index % len(texts)], (args.seed + index) % 2**64)

    runs: list[tuple[str, float, Run]] = []
    with LoadProcesses(target, args.processes) as processes:
        for level in levels:
            print(f"{mode} {level:g}: {args.warmup + args.duration:g} s ...", file=sys.stderr, flush=True)
            if mode == "rate":
                done = processes.open_loop(job, level, args.warmup, args.duration, args.seed)
            else:
                done = processes.closed_loop(job, level, args.warmup, args.duration)
            runs.append((mode, level, done))
    rows = [figures(*one, player_buffer=args.player_buffer) for one in runs]
    settings = _settings(args, target, len(texts))
    print(_heading(settings), table(rows), sep="\n\n")
    print("\n" + "\n".join([*remarks(rows), *DEFINITIONS.splitlines()]))
    if args.json:
        write_json(args.json, settings, rows)
    if args.csv:
        write_csv(args.csv, runs)
    if args.plot:
        plot.write_plot(args.plot, rows, _heading(settings))
    return 0 if all(row.requests > row.failed for row in rows) else 1


def _check(args: argparse.Namespace, levels: list[float]) -> None:
    positive = {"duration": [args.duration], "processes": [args.processes], "rate or concurrency": levels}
    for name, values in positive.items():
        if any(not value > 0 for value in values):
            raise InvalidRequest(name, f"{min(values):g} is not a positive number")
    for name in ("warmup", "player_buffer", "seed"):
        if getattr(args, name) < 0:
            raise InvalidRequest(name, f"{getattr(args, name):g} is negative")
    if args.gateway and args.reference:
        raise InvalidRequest("reference", "goes to gRPC only; store a voice for the gateway")
    for path in (args.json, args.csv, args.plot):
        if path and not path.parent.is_dir():
            raise InvalidRequest("path", f"{str(path)!r} lies in a folder that does not exist")


def _target(args: argparse.Namespace) -> Target:
    given = {
        "voice": args.voice,
        "reference": args.reference.read_bytes() if args.reference else None,
        "inference_steps": args.steps,
        "max_seconds": args.max_seconds,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if not args.gateway:
        return Target(args.url, args.pipeline, deadline=args.deadline, options=options)
    if not args.gateway.startswith(("http://", "https://")):
        raise ServerUnavailable(f"{args.gateway!r} is no URL of a gateway, such as http://127.0.0.1:8080")
    import_module("aiohttp")
    return Target(args.gateway, args.pipeline, True, args.api_key, args.deadline, options)


def _settings(args: argparse.Namespace, target: Target, texts: int) -> dict[str, Any]:
    return {
        "url": target.url,
        "pipeline": target.pipeline,
        "gateway": target.gateway,
        "texts": str(args.text_file) if args.text_file else ", ".join(args.texts),
        "number_of_texts": texts,
        "duration_s": args.duration,
        "warmup_s": args.warmup,
        "processes": args.processes,
        "seed": args.seed,
        "player_buffer_s": args.player_buffer,
        "deadline_s": args.deadline,
        "options": {name: "a recording" if name == "reference" else v for name, v in target.options.items()},
        "client": version("triton-speech"),
        "load_host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _heading(settings: dict[str, Any]) -> str:
    way = "gateway" if settings["gateway"] else "gRPC"
    return (
        f"{settings['pipeline']} through {way}, texts: {settings['texts']}, {settings['duration_s']:g} s a level after "
        f"{settings['warmup_s']:g} s, {settings['processes']} load processes, player's buffer "
        f"{settings['player_buffer_s']:g} s"
    )
