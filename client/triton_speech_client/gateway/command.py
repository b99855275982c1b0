"""``triton-speech gateway``: serves until a signal."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import sys
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import ValidationError

from triton_speech_client.gateway.app import create_app
from triton_speech_client.gateway.settings import GatewaySettings, read_keys
from triton_speech_client.wire import check_url

_DEFAULTS = GatewaySettings()
DRAIN_SECONDS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``gateway``."""
    add = parser.add_argument
    add("--triton", default=_DEFAULTS.triton, metavar="HOST:PORT", help="Triton's gRPC (%(default)s)")
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8080, help="port to listen on, 0 takes a free one (%(default)s)")
    add("--model", default=_DEFAULTS.model, help="pipeline behind tts-1 and the other aliases (%(default)s)")
    add("--model-alias", action="append", metavar="NAME", help="name of the default pipeline, in place of OpenAI's")
    add("--voice-alias", action="append", metavar="NAME", help="name of the default voice, in place of OpenAI's")
    add("--keys", type=Path, metavar="FILE", help="TOML or JSON file of API keys; without it everybody is let in")
    limits = parser.add_argument_group("limits").add_argument
    limits(
        "--max-characters", type=int, default=_DEFAULTS.max_characters, metavar="N", help="of one text (%(default)s)"
    )
    limits("--max-body-mib", type=int, default=_DEFAULTS.max_body_bytes >> 20, metavar="N", help="%(default)s")
    limits(
        "--max-concurrent",
        type=int,
        default=_DEFAULTS.max_concurrent,
        metavar="N",
        help="utterances at once (%(default)s)",
    )
    limits(
        "--max-sessions", type=int, default=_DEFAULTS.max_sessions, metavar="N", help="live connections (%(default)s)"
    )
    limits(
        "--stall-seconds",
        type=float,
        default=_DEFAULTS.stall_seconds,
        metavar="S",
        help="leave a reader who takes nothing for so long (%(default)g)",
    )
    web = parser.add_argument_group("web").add_argument
    web(
        "--cors-origin",
        action="append",
        metavar="ORIGIN",
        help="web site whose pages may call, such as https://a.example",
    )
    web("--reference-urls", action="store_true", help="take recordings from public https URLs, too")
    web("--proxy", metavar="ADDRESS", help="proxy in front whose X-Forwarded-For is believed")
    add(
        "--drain-seconds",
        type=int,
        default=DRAIN_SECONDS,
        metavar="S",
        help="on a stop, speeches that run have so long to end (%(default)s)",
    )
    add("--access-log", action="store_true", help="a line for each request: address, path and status")


def run(args: argparse.Namespace) -> int:
    """Serves; raises ``ValueError`` or ``OSError`` when it cannot."""
    settings = gateway_settings(args)
    if args.drain_seconds < 0:
        raise ValueError(f"--drain-seconds is {args.drain_seconds}, must be 0 or more")
    if not settings.keys and not _is_loopback(args.host):
        _say(f"warning: --host {args.host} is open to the network and no --keys are asked for")
    # It tells of every form that is none, which is the sender's business.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    config = uvicorn.Config(
        create_app(settings),
        host=args.host,
        port=args.port,
        log_level="info" if args.access_log else "warning",
        access_log=args.access_log,
        server_header=False,
        proxy_headers=args.proxy is not None,
        forwarded_allow_ips=args.proxy or "",
        # Of one event; recordings are the largest.
        ws_max_size=settings.max_body_bytes,
        timeout_graceful_shutdown=args.drain_seconds,
    )
    server = _Server(config)
    server.run()
    return 0 if server.started else 1


def gateway_settings(args: argparse.Namespace) -> GatewaySettings:
    """What the arguments say; raises ``ValueError`` that names the option."""
    given: dict[str, Any] = {
        "triton": check_url(args.triton),
        "model": args.model,
        "keys": read_keys(args.keys) if args.keys else (),
        "max_characters": args.max_characters,
        "max_body_bytes": args.max_body_mib << 20,
        "max_concurrent": args.max_concurrent,
        "max_sessions": args.max_sessions,
        "stall_seconds": args.stall_seconds,
        "cors_origins": tuple(args.cors_origin or ()),
        "reference_urls": args.reference_urls,
    }
    for option in ("model_alias", "voice_alias"):
        if (names := getattr(args, option)) is not None:
            given[f"{option}es"] = tuple(names)
    try:
        return GatewaySettings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise ValueError(f"--{option}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


class _Server(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            print(f"gateway  http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _say(sentence: str) -> None:
    print(f"triton-speech: {sentence}", file=sys.stderr, flush=True)
