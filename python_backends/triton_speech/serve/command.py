"""``triton-speech serve``: starts the server, says when it is ready, and ends with it."""

from __future__ import annotations

import argparse
import ipaddress
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.layout import check_profile, find_checkpoints, find_models, find_voices
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer, how_it_ended

_POLL_SECONDS = 0.2
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``serve``."""
    default = Ports()
    add = parser.add_argument
    add("--checkpoints", type=Path, metavar="DIR", help="a checkpoint or a folder of them (default: checkpoints/)")
    add("--voices", type=Path, metavar="DIR", help="folder of stored voices (default: voices/, beside checkpoints/)")
    add(
        "--profile",
        metavar="NAME",
        help="e.g. cpu, low_latency, throughput: a file configs/NAME.pbtxt of the stages (default: config.pbtxt)",
    )
    add("--models", type=Path, metavar="DIR", help="holds model_repository/ and ensembles/ (default: this checkout)")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--http-port", type=int, default=default.http, metavar="PORT", help="default: %(default)s; 0 takes a free one")
    add("--grpc-port", type=int, default=default.grpc, metavar="PORT", help="default: %(default)s; 0 takes a free one")
    add(
        "--metrics-port",
        type=int,
        default=default.metrics,
        metavar="PORT",
        help="default: %(default)s; 0 takes a free one",
    )
    log = parser.add_mutually_exclusive_group()
    log.add_argument("--log-file", type=Path, metavar="FILE", help="append the server's log to FILE")
    log.add_argument("--verbose", action="store_true", help="write the server's log to stderr")
    add(
        "--ready-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="give up when not ready by then (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """Serves until a signal or the server's own end. Returns the server's exit code, 1 when it failed."""
    try:
        settings = _settings(args)
        if not _is_loopback(settings.host):
            _say(f"warning: --host {settings.host} is open to the network and the server asks for no authentication")
        return _serve(TritonServer(settings), args.ready_timeout)
    except SpeechSetupError as error:
        _say(str(error))
        return 1


def _settings(args: argparse.Namespace) -> ServerSettings:
    models = find_models(args.models)
    if args.profile is not None:
        check_profile(args.profile, models)
    return ServerSettings(
        models=models,
        checkpoints=find_checkpoints(args.checkpoints, models),
        voices=find_voices(args.voices, models),
        profile=args.profile,
        host=args.host,
        ports=Ports(args.http_port, args.grpc_port, args.metrics_port),
        log_file=args.log_file,
        verbose=args.verbose,
    )


def _serve(server: TritonServer, ready_timeout: float) -> int:
    asked_to_stop = _on_stop_signals(server)
    began = time.monotonic()
    try:
        server.start()
        if server.wait_ready(ready_timeout, asked_to_stop):
            _announce(server, time.monotonic() - began)
        while not asked_to_stop():
            code = server.poll()
            if code is not None:
                _say(f"the server {how_it_ended(code)}")
                return 1
            time.sleep(_POLL_SECONDS)
    finally:
        code = server.stop()
    # Killed on the second signal, or before it could react to the first: the launcher did what it was told.
    return code if code is not None and code >= 0 else 0


def _on_stop_signals(server: TritonServer) -> Callable[[], bool]:
    """The first signal asks to stop, a second one kills; signals that were ignored (nohup) stay so."""
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            server.kill()

    for number in _STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handle)
    return lambda: bool(received)


def _announce(server: TritonServer, seconds: float) -> None:
    print(f"http     {server.http_url}")
    print(f"grpc     {server.grpc_url}")
    print(f"metrics  {server.metrics_url}")
    print(f"ready in {seconds:.1f} s", flush=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _say(sentence: str) -> None:
    print(f"triton-speech: {sentence}", file=sys.stderr, flush=True)
