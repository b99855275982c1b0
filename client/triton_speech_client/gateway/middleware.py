"""What happens to every request before its route: an id, a count, a limit on the body, a look at its origin."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_speech_client.gateway.errors import ApiError
from triton_speech_client.gateway.metrics import Metrics

_REQUEST_ID = re.compile("[A-Za-z0-9._-]{1,64}")
_DRAIN_SECONDS = 5.0
_DRAIN_FACTOR = 4


class Observe:
    """Gives each request an id (the caller's ``X-Request-Id`` where it is one), returns it, counts the answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def observed(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                MutableHeaders(scope=message)["x-request-id"] = request_id
                path = getattr(scope.get("route"), "path", "other")
                self._metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, observed)


class BodyLimit:
    """Answers 413 to a body that is longer than allowed, whether it says so before or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        error = ApiError(
            413,
            f"the body is longer than {self._max_bytes} bytes",
            code="body_too_large",
            headers={"Connection": "close"},
        )
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            await self._drain(receive)
            await error.response()(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if message["type"] == "http.request" and received > self._max_bytes:
                if message.get("more_body"):
                    await self._drain(receive)
                raise error
            return message

        await self._app(scope, limited, send)

    async def _drain(self, receive: Receive) -> None:
        """Reads on for a while: a client that is still sending would see a broken connection and not the answer."""
        dropped = 0
        with anyio.move_on_after(_DRAIN_SECONDS):
            while dropped < _DRAIN_FACTOR * self._max_bytes:
                message = await receive()
                dropped += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return


class OriginGuard:
    """Refuses what another web site's page makes a browser send: forms and WebSockets know no CORS."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_welcome(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(403, "this gateway takes no requests from other web sites", code="origin_not_allowed")
        if scope["type"] == "websocket":
            await receive()
        await error.response()(scope, receive, send)

    def _is_welcome(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or scope.get("method") in ("GET", "HEAD", "OPTIONS"):
            return True
        return "*" in self._allowed or origin in self._allowed or urlsplit(origin).netloc == headers.get("host")
