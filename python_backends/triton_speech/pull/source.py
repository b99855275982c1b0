"""Where checkpoints come from: a folder, a web server, or a hub with the address layout of Hugging Face."""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from triton_speech.pull.errors import PullError

_HUB_NAME = re.compile(r"hub:[\w.-]+/[\w.-]+")
_USER_AGENT = "triton-speech-pull"


class InterruptedTransferError(Exception):
    """A transfer that broke off, or a server that is not to be had now: worth another try."""


@dataclass(frozen=True)
class Source:
    """``base`` is the address of the checkpoint's folder, without a slash at the end: ``file://`` or ``http(s)://``.

    ``token`` goes to that host alone, ``timeout`` is the longest silence of a transfer in seconds.
    """

    base: str
    token: str | None = field(default=None, repr=False)
    timeout: float = 30.0

    @contextmanager
    def open(self, name: str, offset: int = 0) -> Iterator[tuple[IO[bytes], int]]:
        """The bytes of a file, and at which of them they begin: ``offset``, or 0 where the server has no ranges.

        Raises:
            InterruptedTransferError: broken off, or refused with a status that may pass.
            PullError: the file is not there, or not for us.
        """
        address = f"{self.base}/{urllib.parse.quote(name)}"
        if address.startswith("file://"):
            with _open_local(address, offset) as file:
                yield file, offset
            return
        request = urllib.request.Request(address, headers={"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"})
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        if self.token is not None:
            # Not sent again to where the answer redirects.
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            with _opener.open(request, timeout=self.timeout) as answer:
                yield answer, _begin(answer, offset)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (408, 425, 429) or error.code >= 500:
                raise InterruptedTransferError(f"{address}: status {error.code}") from error
            raise PullError(f"{address}: status {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise InterruptedTransferError(
                f"{address}: {getattr(error, 'reason', error) or type(error).__name__}"
            ) from error

    def read(self, name: str, most: int) -> bytes:
        """A small file, whole.

        Raises:
            InterruptedTransferError, PullError: as ``open``; also where it is longer than ``most`` bytes.
        """
        with self.open(name) as (file, _):
            content = file.read(most + 1)
        if len(content) > most:
            raise PullError(f"{self.base}/{name} is longer than {most} bytes")
        return content


def find_source(text: str, revision: str | None, hub: str, token: str | None, timeout: float) -> Source:
    """``hub:OWNER/NAME``, a URL, or a folder; ``{revision}`` in a URL stands for the revision.

    Raises:
        PullError: it is none of these, or needs a revision.
    """
    if text.startswith("hub:"):
        if not _HUB_NAME.fullmatch(text):
            raise PullError(f"{text} is not hub:OWNER/NAME")
        text = f"{hub.rstrip('/')}/{text[4:]}/resolve/{{revision}}"
    if "{revision}" in text:
        if revision is None:
            raise PullError(f"{text} needs --revision")
        text = text.replace("{revision}", urllib.parse.quote(revision, safe=""))
    if "://" not in text:
        if not Path(text).is_dir():
            raise PullError(f"{text} is no folder, no URL and not hub:OWNER/NAME")
        text = Path(text).resolve().as_uri()
    if not text.startswith(("file://", "http://", "https://")):
        raise PullError(f"{text} must begin with file://, http:// or https://")
    if token is not None and text.startswith("http://"):
        raise PullError(f"{text} would send the token in the clear; use https://")
    return Source(text.rstrip("/"), token, timeout)


def _open_local(address: str, offset: int) -> IO[bytes]:
    path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(address).path))
    try:
        file = path.open("rb")
    except OSError as error:
        raise PullError(f"{path}: {error.strerror}") from error
    file.seek(offset)
    return file


def _begin(answer: Any, offset: int) -> int:
    """Where the answer's bytes begin: a server may ignore the range that was asked for."""
    if answer.status != 206:
        return 0
    match = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != offset:
        raise InterruptedTransferError(f"{answer.url}: sent another range than asked for")
    return offset


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https://") and not newurl.startswith("https://"):
            raise PullError(f"{req.full_url} redirects to an address without TLS")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_opener = urllib.request.build_opener(_Redirects)
