"""What routes are given: the shared state, and the caller behind a request."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from triton_speech_client.gateway.access import Caller
from triton_speech_client.gateway.speech import Gateway


# Coroutines, although they wait for nothing: FastAPI would run plain functions in a thread.
async def gateway_of(request: Request) -> Gateway:
    """The shared state."""
    return request.app.state.gateway


async def caller_of(request: Request) -> Caller:
    """Whoever sent the request; raises ``ApiError`` 401."""
    gateway: Gateway = request.app.state.gateway
    return gateway.access.caller(request.headers.get("authorization"))


SharedGateway = Annotated[Gateway, Depends(gateway_of)]
KnownCaller = Annotated[Caller, Depends(caller_of)]
