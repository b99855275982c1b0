"""A web server on loopback that sends files as badly as it is told to."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from triton_speech.pull.manifest import make_manifest

REVISION = "v1.2"


@dataclass
class Site:
    """``requests``: path, range and token of each. ``cuts``: after how many bytes the next files
    break off. ``statuses``: of the next answers, in place of files.
    """

    url: str
    requests: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    has_ranges: bool = True
    redirect_to: str | None = None

    def ranges(self, name: str) -> list[str | None]:
        return [asked for path, asked, _ in self.requests if path.endswith(name)]


class _Handler(SimpleHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, asked = self.site, self.headers.get("Range")
        site.requests.append((self.path, asked, self.headers.get("Authorization")))
        if site.statuses:
            self.send_error(site.statuses.pop(0))
            return
        if site.redirect_to is not None:
            self.send_response(302)
            self.send_header("Location", f"{site.redirect_to}{self.path}")
            self.end_headers()
            return
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        offset = int(asked.removeprefix("bytes=").rstrip("-")) if asked and site.has_ranges else 0
        self.send_response(206 if offset else 200)
        if offset:
            self.send_header("Content-Range", f"bytes {offset}-{len(content) - 1}/{len(content)}")
        body = content[offset:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if path.name != "manifest.json" and site.cuts:
            body = body[: site.cuts.pop(0)]
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Files of a checkpoint, one in a folder and one empty, with their manifest."""
    folder = tmp_path / "origin" / "voice"
    (folder / "extra").mkdir(parents=True)
    (folder / "config.json").write_text('{"architecture": "voxcpm2"}', encoding="utf-8")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
    (folder / "extra" / "notes.txt").write_bytes(b"")
    write_manifest(folder)
    return folder


def write_manifest(folder: Path, revision: str = REVISION) -> None:
    (folder / "manifest.json").write_text(make_manifest(folder, revision).to_json(), encoding="utf-8")


@pytest.fixture
def open_site() -> Iterator[Any]:
    """Opens sites that serve a folder."""
    servers = []

    def open_site(folder: Path) -> Site:
        handler = type("Handler", (_Handler,), {})
        server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
        handler.site = Site(f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return handler.site

    yield open_site
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def site(checkpoint: Path, open_site: Any) -> Site:
    """Serves the checkpoint's parent folder."""
    return open_site(checkpoint.parent)
