"""``triton-speech health``: asks the launcher of a server how the server is."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from typing import Any

from triton_speech_client.errors import ServerError, ServerUnavailable

# A proxy of the environment has no business with one's own server.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``health``."""
    url = "http://127.0.0.1:8003"
    parser.add_argument("--url", default=url, help="of the health port of 'triton-speech serve' (default: %(default)s)")
    parser.add_argument("--live", action="store_true", help="only whether the launcher and the server's process run")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--json", action="store_true", help="print the whole report")


def run(args: argparse.Namespace) -> int:
    """0 when the server is ready (or live), 1 when not; prints what is wrong.

    Raises:
        ServerUnavailable: nobody answers there.
        ServerError: what answers is no health port.
    """
    what = "live" if args.live else "ready"
    report = _ask(f"{args.url.rstrip('/')}/{what}", args.timeout)
    print(json.dumps(report, indent=2) if args.json else _sentences(report, what))
    return 0 if report[what] else 1


def _ask(url: str, timeout: float) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--url {url} is no URL, such as http://127.0.0.1:8003")
    try:
        with _opener.open(url, timeout=timeout) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        text = error.read()
    except OSError as error:
        raise ServerUnavailable(f"nobody answers at {url}: {getattr(error, 'reason', error)}") from error
    try:
        report = json.loads(text)
        return {name: report[name] for name in ("live", "ready", "state", "problems", "heals", "restarts")}
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{url} is not the health port of 'triton-speech serve'") from error


def _sentences(report: dict[str, Any], what: str) -> str:
    lines = [what if report[what] else f"not {what}: the server is {report['state']}"]
    lines += [f"model '{name}' {problem}" for name, problem in sorted(report["problems"].items())]
    return "\n".join(lines)
