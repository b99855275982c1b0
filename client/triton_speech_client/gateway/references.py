"""Recordings that come with a request: base64, the bytes of a form, or a URL that cannot reach inside."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import anyio
from aiohttp.abc import AbstractResolver, ResolveResult

from triton_speech_client.audio_source import AudioSource
from triton_speech_client.gateway.errors import invalid

FETCH_SECONDS = 10.0
FETCH_BYTES = 16 * 2**20
MAX_REDIRECTS = 3
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_REDIRECTS = (301, 302, 303, 307, 308)


async def recording_bytes(param: str, value: str | bytes | None, fetcher: UrlFetcher | None) -> bytes | None:
    """The bytes of an audio file.

    Raises:
        ApiError: 400 for what is not base64, or for a URL that is not allowed or does not work.
    """
    if value is None or isinstance(value, bytes):
        return value
    if "://" in value[:16]:
        if fetcher is None:
            raise invalid(param, "is a URL; send the file itself, as base64 or in a form")
        return await fetcher.fetch(param, value)
    content = value
    if value.startswith("data:"):
        header, _, content = value.partition(",")
        if not header.endswith(";base64"):
            raise invalid(param, "is a data URI without base64")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(param, f"is not base64: {error}") from error


async def recording_list(
    param: str, value: str | bytes | Sequence[str] | None, fetcher: UrlFetcher | None
) -> bytes | list[AudioSource] | None:
    """The same, or of a list the bytes of each."""
    if value is None or isinstance(value, str | bytes):
        return await recording_bytes(param, value, fetcher)
    files = await asyncio.gather(*(recording_bytes(param, one, fetcher) for one in value))
    return [file for file in files if file is not None]


def is_public(address: str) -> bool:
    """Whether an IP address is one of the open internet, also where another address hides within it."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None or ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        if ip.sixtofour is not None and not is_public(str(ip.sixtofour)):
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


class UrlFetcher:
    """Gets a recording over https from public addresses only, within a time and a size.

    The address that was checked is the one that is connected to, and each redirect is checked again.

    Args:
        is_allowed: tells of an IP address whether it may be connected to.
        tls: context for certificates; None takes the system's.
        port: the only one allowed.
    """

    def __init__(
        self,
        is_allowed: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
        port: int = 443,
        seconds: float = FETCH_SECONDS,
        max_bytes: int = FETCH_BYTES,
    ) -> None:
        self._is_allowed = is_allowed
        self._tls = tls or ssl.create_default_context()
        self._port = port
        self._seconds = seconds
        self._max_bytes = max_bytes

    async def fetch(self, param: str, url: str) -> bytes:
        """The body behind ``url``; ``param`` is named in errors.

        Raises:
            ApiError: 400, without a word about what lies behind a URL that is not allowed.
        """
        connector = aiohttp.TCPConnector(
            resolver=_CheckedResolver(self._is_allowed), ssl=self._tls, use_dns_cache=False, force_close=True
        )
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            # No proxy from the environment: it would connect for us, to anywhere.
            async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:
                with anyio.fail_after(self._seconds):
                    return await self._follow(session, param, url)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise invalid(param, f"the URL gave no file within {self._seconds:g} s") from error
        except _NotAllowedError as error:
            raise invalid(param, "the URL's host is not a public one") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise invalid(param, "the URL cannot be read") from error

    async def _follow(self, session: aiohttp.ClientSession, param: str, url: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            self._check(param, url)
            async with session.get(url, allow_redirects=False) as response:
                if response.status in _REDIRECTS and "Location" in response.headers:
                    url = urljoin(url, response.headers["Location"])
                    continue
                if response.status != 200:
                    raise invalid(param, f"the URL answers with status {response.status}")
                return await self._read(response, param)
        raise invalid(param, f"the URL redirects more than {MAX_REDIRECTS} times")

    def _check(self, param: str, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port or 443
        except ValueError as error:
            raise invalid(param, "is not a URL") from error
        if parts.scheme != "https" or not parts.hostname or parts.username is not None or port != self._port:
            raise invalid(param, f"only https URLs on port {self._port} without a user are allowed")
        try:
            ipaddress.ip_address(parts.hostname)
        except ValueError:
            return  # a name, which the resolver checks
        if not self._is_allowed(parts.hostname):
            raise _NotAllowedError(parts.hostname)

    async def _read(self, response: aiohttp.ClientResponse, param: str) -> bytes:
        body = bytearray()
        async for piece in response.content.iter_chunked(2**16):
            body += piece
            if len(body) > self._max_bytes:
                raise invalid(param, f"the URL's file is longer than {self._max_bytes} bytes")
        return bytes(body)


class _NotAllowedError(Exception):
    """No OSError: aiohttp would take it for a failure of the network."""


class _CheckedResolver(AbstractResolver):
    """Resolves only to allowed addresses: one that is not refuses the name, whatever its others are."""

    def __init__(self, is_allowed: Callable[[str], bool]) -> None:
        self._is_allowed = is_allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found: list[Any] = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        if not found or not all(self._is_allowed(address[0]) for *_, address in found):
            raise _NotAllowedError(host)
        return [
            ResolveResult(hostname=host, host=address[0], port=port, family=kind, proto=proto, flags=0)
            for kind, _, proto, _, address in found
        ]

    async def close(self) -> None:
        """Holds nothing."""
