"""``triton-speech serve``: keeps a server running, says when it is ready, and lets it drain in the end."""

from __future__ import annotations

import argparse
import importlib
import ipaddress
import signal
import sys
from pathlib import Path
from types import FrameType

from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.health import Health, HealthServer
from triton_speech.serve.layout import PIPELINES, check_profile, find_checkpoints, find_models, find_voices
from triton_speech.serve.locate import python_warning, wheel_root
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer
from triton_speech.serve.supervisor import Supervision, Supervisor
from triton_speech.serve.wiring import left_out, read_pipelines

_END_SECONDS = 5
"""For what still runs after the pipelines have drained."""
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
    add(
        "--pipeline",
        nargs="+",
        default=(),
        metavar="NAME",
        help="serve these pipelines only, with the models that they need; voxcpm2_split is served where it is named "
        "(default: all others)",
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
    add("--health-port", type=int, default=8003, metavar="PORT", help="default: %(default)s; 0 takes a free one")
    add(
        "--connection-seconds",
        type=float,
        metavar="SECONDS",
        help="ask gRPC clients to connect anew after so long, to find servers that came later (default: never)",
    )
    add(
        "--trace-otlp",
        metavar="URL",
        help="send OpenTelemetry traces there, e.g. http://127.0.0.1:4318/v1/traces; needs the extra 'tracing'",
    )
    add(
        "--trace-rate", type=int, default=1, metavar="N", help="trace one request in N (default: %(default)s, each one)"
    )
    add(
        "--ready-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="give up when not ready by then (default: %(default)g)",
    )
    usual = Supervision()
    for name, kind, help in (
        ("probe-interval", float, "seconds between two probes of each model"),
        ("probe-seconds", float, "a model that answers no probe for so long is loaded anew"),
        ("heal-attempts", int, "so often in a row, then serve ends with code 3"),
        ("drain-seconds", float, "on a stop, running streams have so long to end"),
    ):
        usually = getattr(usual, name.replace("-", "_"))
        add(f"--{name}", type=kind, default=usually, metavar="N", help=f"{help} (default: {usually:g})")


def run(args: argparse.Namespace) -> int:
    """Serves until a signal. Returns 0, 1 when the server failed, 3 when it could not be healed."""
    try:
        settings = _settings(args)
        supervision = Supervision(
            args.probe_interval, args.probe_seconds, args.heal_attempts, args.drain_seconds, args.ready_timeout
        )
        if warning := python_warning(wheel_root(), sys.version_info[:2]):
            _say(f"warning: {warning}")
        if not _is_loopback(settings.host):
            _say(f"warning: --host {settings.host} is open to the network and the server asks for no authentication")
        health = Health()
        health_server = HealthServer(health, settings.host, args.health_port)
        try:
            return _serve(settings, supervision, health, health_server.port)
        finally:
            health_server.close()
    except SpeechSetupError as error:
        _say(str(error))
        return 1


def _settings(args: argparse.Namespace) -> ServerSettings:
    models = find_models(args.models)
    if args.profile is not None:
        check_profile(args.profile, models)
    left_out(read_pipelines(models / PIPELINES), args.pipeline)
    return ServerSettings(
        models=models,
        checkpoints=find_checkpoints(args.checkpoints, models),
        voices=find_voices(args.voices, models),
        profile=args.profile,
        pipelines=tuple(args.pipeline),
        host=args.host,
        ports=Ports(args.http_port, args.grpc_port, args.metrics_port),
        log_file=args.log_file,
        verbose=args.verbose,
        trace_otlp=_trace_url(args.trace_otlp, args.trace_rate),
        trace_rate=args.trace_rate,
        connection_seconds=_connection_seconds(args.connection_seconds),
        drain_seconds=_END_SECONDS,
    )


def _connection_seconds(seconds: float | None) -> float | None:
    if seconds is not None and not seconds >= 1:
        raise SpeechSetupError(f"--connection-seconds {seconds:g} must be at least 1")
    return seconds


def _trace_url(url: str | None, rate: int) -> str | None:
    if url is None:
        return None
    if not url.startswith(("http://", "https://")):
        raise SpeechSetupError(f"--trace-otlp {url} must be a URL that begins with http:// or https://")
    if rate < 1:
        raise SpeechSetupError(f"--trace-rate {rate} must be at least 1")
    try:
        importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise SpeechSetupError("--trace-otlp needs OpenTelemetry: pip install 'triton-speech[tracing]'") from error
    return url


def _serve(settings: ServerSettings, supervision: Supervision, health: Health, health_port: int) -> int:
    def announce(server: TritonServer, seconds: float) -> None:
        print(f"http     {server.http_url}")
        print(f"grpc     {server.grpc_url}")
        print(f"metrics  {server.metrics_url}")
        print(f"health   {server.url_of(health_port)}/ready")
        print(f"ready in {seconds:.1f} s", flush=True)

    supervisor = Supervisor(settings, supervision, health, announce, _say)
    _on_stop_signals(supervisor)
    return supervisor.run()


def _on_stop_signals(supervisor: Supervisor) -> None:
    """The first signal asks to stop, a second one kills; signals that were ignored (nohup) stay so."""
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            supervisor.kill()
        else:
            supervisor.stop()

    for number in _STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handle)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _say(sentence: str) -> None:
    print(f"triton-speech: {sentence}", file=sys.stderr, flush=True)
