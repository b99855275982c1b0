"""The gateway: OpenAI's speech API, live text and a page, in front of a Triton server. A client of it, no more.

    triton-speech gateway --triton 127.0.0.1:8001

``create_app(GatewaySettings())`` is the same as an ASGI application. docs/gateway.md describes routes and limits.
"""
