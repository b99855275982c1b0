"""Spans of a front door's requests, in the traces that Triton begins.

Triton's trace of a decoupled, asynchronous model is over when ``execute`` has returned, which is long before the stream
is: the 2.51 server crashes when a later call is told to belong to it. So what a request does in the stages is told
from here, under the same trace, to the same receiver.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from .request_record import RequestRecord

log = logging.getLogger(__name__)

ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
"""OpenTelemetry's own variable; ``triton-speech serve --trace-otlp`` sets it."""


class Tracing:
    """Sends spans on a thread of its own; without an endpoint in the environment it does nothing."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._provider: Any = None
        if not os.environ.get(ENDPOINT):
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            log.warning("%s is set, but OpenTelemetry is not installed: pip install 'triton-speech[tracing]'", ENDPOINT)
            return
        self._provider = TracerProvider(resource=Resource.create({"service.name": "triton-speech"}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("triton_speech")

    def context(self, request: Any) -> str | None:
        """The trace of a request, as W3C's headers in JSON; None where it is not traced. To be asked in ``execute``."""
        if self._provider is None or not hasattr(request, "trace"):
            return None
        context: str | None = request.trace().get_context()
        return context or None

    def tell(self, context: str | None, record: RequestRecord) -> None:
        """Sends the spans of a request that is over."""
        if context is None:
            return
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(json.loads(context))
        (name, began, ended), *stages = record.spans(self._model)
        whole = self._tracer.start_span(name, parent, attributes={"request.id": record.request_id}, start_time=began)
        inside = set_span_in_context(whole, parent)
        for stage, stage_began, stage_ended in stages:
            self._tracer.start_span(stage, inside, start_time=stage_began).end(stage_ended)
        whole.end(ended)

    def close(self) -> None:
        """Sends what is left."""
        if self._provider is not None:
            self._provider.shutdown()
