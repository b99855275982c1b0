"""The ASGI application: routes, and what stands around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from triton_speech_client.errors import SpeechClientError
from triton_speech_client.gateway.body import SpeechBody, check_fields, read_fields
from triton_speech_client.gateway.depends import KnownCaller, SharedGateway
from triton_speech_client.gateway.errors import ApiError, api_error, log
from triton_speech_client.gateway.live import LiveSession
from triton_speech_client.gateway.middleware import BodyLimit, Observe, OriginGuard
from triton_speech_client.gateway.settings import GatewaySettings
from triton_speech_client.gateway.speech import Gateway, SpeechResponse, Utterance
from triton_speech_client.gateway.voices import add_voice_routes

PAGE = Path(__file__).parent / "page"
KEY_PROTOCOL = "openai-insecure-api-key."
"""A browser cannot set a WebSocket's headers; as at OpenAI a subprotocol carries the key there."""
PROTOCOL = "triton-speech"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; media-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
# Written out because the body is read by hand: as JSON or as a form, within limits.
SPEECH_SCHEMA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": SpeechBody.model_json_schema(ref_template="#/components/schemas/{model}")}
            for kind in ("application/json", "multipart/form-data")
        },
    },
    "responses": {"200": {"description": "The audio file", "content": {"audio/*": {}, "text/event-stream": {}}}},
}


def create_app(settings: GatewaySettings) -> FastAPI:
    """The gateway for one Triton server."""
    gateway = Gateway.of(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if not await gateway.catalog.open():
            log.warning("no pipeline is ready at %s yet", settings.triton)
        yield
        await gateway.catalog.close()

    app = FastAPI(title="Triton Speech", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.gateway = gateway
    _add_routes(app)
    add_voice_routes(app)
    _add_page(app)
    _add_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(OriginGuard, allowed=settings.cors_origins)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=["X-Sample-Rate", "X-Request-Id", "X-Finish-Reason"],
        )
    app.add_middleware(Observe, metrics=gateway.metrics)
    return app


def _add_routes(app: FastAPI) -> None:
    @app.post("/v1/audio/speech", openapi_extra=SPEECH_SCHEMA, response_class=Response)
    async def speak(request: Request, gateway: SharedGateway, caller: KnownCaller) -> Response:
        fields, has_types = await read_fields(request, gateway.settings.body_seconds)
        body = check_fields(SpeechBody, fields, has_types)
        return SpeechResponse(Utterance(gateway, caller, body, request.state.request_id))

    @app.get("/v1/models")
    async def list_models(gateway: SharedGateway, _caller: KnownCaller) -> Mapping[str, Any]:
        return {"object": "list", "data": [_model(name) for name in await gateway.catalog.models()]}

    @app.get("/v1/models/{model}")
    async def show_model(model: str, gateway: SharedGateway, _caller: KnownCaller) -> Mapping[str, Any]:
        if model not in await gateway.catalog.models():
            raise ApiError(404, f"model: {model!r} is not offered", param="model", code="model_not_found")
        return _model(model)

    @app.get("/health")
    async def health(gateway: SharedGateway) -> JSONResponse:
        ready = await gateway.catalog.is_ready()
        return JSONResponse({"status": "ok" if ready else "unavailable"}, 200 if ready else 503)

    @app.get("/metrics")
    async def metrics(gateway: SharedGateway) -> Response:
        return gateway.metrics.response()

    @app.websocket("/v1/audio/speech/stream")
    async def live(socket: WebSocket) -> None:
        gateway: Gateway = socket.app.state.gateway
        offered = [name.strip() for name in socket.headers.get("sec-websocket-protocol", "").split(",")]
        keys = [name.removeprefix(KEY_PROTOCOL) for name in offered if name.startswith(KEY_PROTOCOL)]
        authorization = f"Bearer {keys[0]}" if keys else socket.headers.get("authorization")
        try:
            session = LiveSession(gateway, socket, gateway.access.caller(authorization))
        except ApiError as error:
            await socket.send_denial_response(error.response())
            return
        await socket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
        await session.run()


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "triton-speech"}


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)

    app.mount("/page", _Page(directory=PAGE))


class _Page(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(PAGE_HEADERS)
        return response


def _add_error_handlers(app: FastAPI) -> None:
    async def on_error(request: Request, error: Exception) -> Response:
        return api_error(error, getattr(request.state, "request_id", "")).response()

    async def on_http_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        codes = {404: "not_found", 405: "method_not_allowed"}
        return ApiError(
            error.status_code, str(error.detail), code=codes.get(error.status_code), headers=error.headers
        ).response()

    app.add_exception_handler(ApiError, on_error)
    app.add_exception_handler(SpeechClientError, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_error)
