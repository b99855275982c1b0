"""Recordings by URL (S7): off by default, and when on they cannot reach what is not public."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from triton_speech_client.gateway.errors import ApiError
from triton_speech_client.gateway.references import UrlFetcher, is_public, recording_bytes

RECORDING = b"RIFF" + bytes(1000)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254"),
        *("224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
        *("2002:7f00:1::", "2002:a9fe:a9fe::"),
    ],
)
def test_addresses_of_which_something_hides_inside_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_urls_are_refused_unless_they_are_turned_on() -> None:
    with pytest.raises(ApiError, match="reference_audio: is a URL; send the file itself"):
        asyncio.run(recording_bytes("reference_audio", "https://example.com/a.wav", None))


class Site(BaseHTTPRequestHandler):
    """A web site with a recording, redirects, and an endless file."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to?"))
            self.end_headers()
        elif self.path == "/a.wav":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(RECORDING)
        elif self.path == "/slow.wav":
            self.send_response(200)
            self.end_headers()
            for _ in range(50):
                time.sleep(0.1)
                self.wfile.write(b"x")
        elif self.path == "/endless.wav":
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(bytes(65536))
        else:
            self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key and a certificate for ``localhost`` that signs itself."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not there, which makes the certificate of a test")
    folder = tmp_path_factory.mktemp("certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *make.split(), *names], check=True, capture_output=True, timeout=60)
    return key, certificate


class Web:
    """The site, and fetchers that may or may not reach it."""

    def __init__(self, port: int, certificate: Path, asked: list[str]) -> None:
        self.port = port
        self.asked = asked
        self.trusting = ssl.create_default_context(cafile=str(certificate))
        self.url = f"https://localhost:{port}"

    def fetch(self, url: str, allowed: tuple[str, ...] = ("127.0.0.1", "::1"), **more: Any) -> bytes:
        fetcher = UrlFetcher(lambda address: address in allowed, self.trusting, self.port, **more)
        return asyncio.run(fetcher.fetch("reference_audio", url))


@pytest.fixture
def web(certificate: tuple[Path, Path]) -> Iterator[Web]:
    key, public = certificate
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("ThisSite", (Site,), {"asked": asked}))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Web(server.server_address[1], public, asked)
    server.shutdown()
    server.server_close()


def test_a_recording_is_fetched(web: Web) -> None:
    assert web.fetch(f"{web.url}/a.wav") == RECORDING
    assert web.fetch(f"{web.url}/to?/a.wav") == RECORDING


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]"])
def test_an_address_that_is_not_allowed_is_never_connected_to(web: Web, host: str) -> None:
    with pytest.raises(ApiError, match="reference_audio: the URL"):
        web.fetch(f"https://{host}:{web.port}/a.wav", allowed=())
    assert web.asked == []


def test_a_name_with_one_bad_address_among_its_addresses_is_refused(web: Web, monkeypatch: Any) -> None:
    def resolve(_host: Any, port: Any, *_: Any, **__: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("127.0.0.1", "169.254.169.254")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ApiError, match="is not a public one"):
        web.fetch(f"{web.url}/a.wav")
    assert web.asked == []


def test_each_redirect_is_checked(web: Web) -> None:
    for target in (f"https://127.0.0.2:{web.port}/a.wav", f"https://169.254.169.254:{web.port}/latest/meta-data"):
        with pytest.raises(ApiError, match="is not a public one"):
            web.fetch(f"{web.url}/to?{target}")
    for target in ("http://localhost/a.wav", "file:///etc/passwd", "https://localhost:22/"):
        with pytest.raises(ApiError, match="only https URLs on port"):
            web.fetch(f"{web.url}/to?{target}")
    with pytest.raises(ApiError, match="redirects more than 3 times"):
        web.fetch(f"{web.url}/to?/to?/to?/to?/to?/a.wav")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://localhost/a.wav",
            "ftp://localhost/a",
            "file:///etc/passwd",
            "gopher://x/",
            "https:///a",
            "https://[x",
        ),
        *("https://user:secret@localhost/a", "https://localhost:99999/", "https://localhost:22/"),
    ],
)
def test_only_plain_https_urls_are_taken(web: Web, url: str) -> None:
    with pytest.raises(ApiError, match=r"reference_audio: (only https URLs|is not a URL)"):
        web.fetch(url)


def test_a_file_that_is_too_long_or_too_slow_is_given_up(web: Web) -> None:
    with pytest.raises(ApiError, match="is longer than 100000 bytes"):
        web.fetch(f"{web.url}/endless.wav", max_bytes=100_000)
    with pytest.raises(ApiError, match=r"gave no file within 0\.3 s"):
        web.fetch(f"{web.url}/slow.wav", seconds=0.3)


def test_a_missing_file_or_a_certificate_that_is_not_trusted_is_told(web: Web) -> None:
    with pytest.raises(ApiError, match="answers with status 404"):
        web.fetch(f"{web.url}/none.wav")
    web.trusting = ssl.create_default_context()
    with pytest.raises(ApiError, match="cannot be read"):
        web.fetch(f"{web.url}/a.wav")


def test_a_proxy_of_the_environment_is_not_used(web: Web, monkeypatch: Any) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert web.fetch(f"{web.url}/a.wav") == RECORDING


def test_the_gateway_refuses_an_inner_url(speech_server: Any, start_gateway: Any) -> None:
    with start_gateway(triton=speech_server.grpc_url, reference_urls=True) as gateway:
        for url in ("https://localhost/a", "https://127.0.0.1/a", "https://169.254.169.254/latest", "http://x.org/a"):
            answer = gateway.post({"input": "Hello.", "reference_audio": url})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "reference_audio"
