"""``triton-speech pull``: brings a checkpoint to where servers that are going to start look for it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from triton_speech.pull.errors import PullError
from triton_speech.pull.manifest import FILE_NAME, MOST_BYTES, Manifest, check_name, read_manifest
from triton_speech.pull.source import InterruptedTransferError, Source, find_source
from triton_speech.pull.store import Store

HUB = "https://huggingface.co"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``pull``."""
    add = parser.add_argument
    add("source", help="a folder, file://, http(s):// (where {revision} stands for it), or hub:OWNER/NAME")
    add(
        "--to", type=Path, required=True, metavar="DIR", help="folder of checkpoints, as 'serve --checkpoints' takes it"
    )
    add("--name", help="of the checkpoint in DIR (default: the last part of the source's address)")
    add("--revision", metavar="NAME", help="the one to have (default: the manifest's)")
    add("--manifest", type=Path, metavar="FILE", help=f"sizes and checksums (default: {FILE_NAME} at the source)")
    add("--offline", action="store_true", help="ask nobody: fail where it is not here already")
    add("--verify", action="store_true", help="read all of what is here already; else sizes are compared")
    add("--prune", action="store_true", help="remove the other revisions of this checkpoint")
    add("--hub", default=HUB, metavar="URL", help="for hub:OWNER/NAME (default: %(default)s)")
    add("--token-file", type=Path, metavar="FILE", help="holds the token that the source asks for; https only")
    add("--timeout", type=float, default=30.0, metavar="SECONDS", help="longest silence (default: %(default)g)")


def run(args: argparse.Namespace) -> int:
    """Pulls; raises ``PullError`` or ``OSError``."""
    if args.revision is not None:
        check_name("--revision", args.revision)
    if not args.timeout > 0:
        raise PullError(f"--timeout {args.timeout:g} must be more than 0 seconds")
    name = args.name or args.source.removesuffix("/").rpartition("/")[2]
    wanted = _given_manifest(args)
    revision = args.revision or (wanted.revision if wanted else None)
    store = Store(args.to, name)
    with store.locked():
        revision = _have(args, store, wanted, revision) or _pull(args, store, wanted, revision)
        store.use(revision)
        for other in store.prune(revision) if args.prune else ():
            _say(f"removed revision {other}")
    print(f"{store.link}  revision {revision}")
    return 0


def _given_manifest(args: argparse.Namespace) -> Manifest | None:
    """The one of ``--manifest``; what it says goes before what a source says."""
    if args.manifest is None:
        return None
    manifest = read_manifest(args.manifest.read_bytes(), f"--manifest {args.manifest}")
    if args.revision not in (None, manifest.revision):
        raise PullError(f"--revision {args.revision} is not that of --manifest, which is {manifest.revision}")
    return manifest


def _have(args: argparse.Namespace, store: Store, wanted: Manifest | None, revision: str | None) -> str:
    """The revision that will do and is here, empty where it has to come; nobody is asked."""
    if revision is None:
        current = store.current()
        revision = current.revision if current else None
    if revision is None:
        return ""
    problem = store.check(revision, args.verify)
    if not problem and wanted is not None and store.find(revision) != wanted:
        problem = "is not what the manifest says"
    if problem:
        _say(f"revision {revision} {problem}")
    return "" if problem else revision


def _pull(args: argparse.Namespace, store: Store, wanted: Manifest | None, revision: str | None) -> str:
    if args.offline:
        raise PullError(f"{store.link} has not what was asked for, and --offline asks nobody")
    source = find_source(args.source, revision, args.hub, _token(args.token_file), args.timeout)
    manifest = wanted or _sources_manifest(source)
    if revision not in (None, manifest.revision):
        raise PullError(f"{source.base}/{FILE_NAME} is of revision {manifest.revision}, not of {revision}")
    _say(f"{source.base}: revision {manifest.revision}, {len(manifest.files)} files, {manifest.total_bytes >> 20} MiB")
    store.fetch(source, manifest, _say)
    return manifest.revision


def _sources_manifest(source: Source) -> Manifest:
    try:
        return read_manifest(source.read(FILE_NAME, MOST_BYTES), f"{source.base}/{FILE_NAME}")
    except InterruptedTransferError as error:
        raise PullError(str(error)) from error


def _token(path: Path | None) -> str | None:
    return None if path is None else path.read_text(encoding="ascii").strip()


def _say(sentence: str) -> None:
    print(f"triton-speech: {sentence}", file=sys.stderr, flush=True)
