"""Traces in OpenTelemetry's form, as a receiver of them gets them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TEXT = {"TEXT": "Hello there.", "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.5], np.float32)}
ARRIVE_SECONDS = 30.0
PARTS = {"voxcpm2", "frontend", "talker", "talker_first_chunk", "codec"}
STEPS = {"voxcpm2_pipeline", "voxcpm2_frontend", "voxcpm2_reference", "voxcpm2_talker", "voxcpm2_codec"}

Span = tuple[str, str, str, str, int, int]
"""Name, trace, own id, parent's id, beginning and end in nanoseconds."""


class Receiver:
    """Takes traces over HTTP, as JSON from Triton and as Protobuf from Python."""

    def __init__(self) -> None:
        spans: list[Span] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                spans.extend(read_spans(body, "json" in self.headers["Content-Type"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.spans = spans
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def wait_for(self, is_there: Callable[[list[Span]], bool]) -> list[Span]:
        """Triton and the front door send for themselves, every few seconds."""
        until = time.monotonic() + ARRIVE_SECONDS
        while not is_there(list(self.spans)) and time.monotonic() < until:
            time.sleep(0.1)
        return list(self.spans)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def names(spans: list[Span]) -> set[str]:
    return {span[0] for span in spans}


def read_spans(body: bytes, is_json: bool) -> list[Span]:
    if is_json:
        every = [s for r in json.loads(body)["resourceSpans"] for c in r["scopeSpans"] for s in c["spans"]]
        return [
            (
                span["name"],
                span["traceId"],
                span["spanId"],
                span.get("parentSpanId", ""),
                int(span["startTimeUnixNano"]),
                int(span["endTimeUnixNano"]),
            )
            for span in every
        ]
    message = ExportTraceServiceRequest.FromString(body)
    return [
        (
            s.name,
            s.trace_id.hex(),
            s.span_id.hex(),
            s.parent_span_id.hex(),
            s.start_time_unix_nano,
            s.end_time_unix_nano,
        )
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for s in scope.spans
    ]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def traced(serving: Any, receiver: Receiver) -> Iterator[Any]:
    with serving({}, trace_otlp=receiver.url) as server:
        yield server


def test_the_stages_of_a_request_are_in_its_trace(traced: Any, receiver: Receiver, calling: Any) -> None:
    receiver.spans.clear()
    with calling(traced.grpc_url) as caller:
        answer = caller.ask("voxcpm2", TEXT)
    assert not answer.errors
    # Triton's own spans of the request, one within the other, and ours: all called voxcpm2 where they are whole.
    spans = receiver.wait_for(lambda spans: "codec" in names(spans) and "compute" in names(spans))
    whole = max((span for span in spans if span[0] == "voxcpm2"), key=lambda span: span[5] - span[4])
    inside = [span for span in spans if span[3] == whole[2]]
    assert {span[0] for span in inside} == PARTS - {"voxcpm2"}
    assert {span[1] for span in spans} == {whole[1]}, "Triton's spans and the front door's are one trace"
    assert whole[3] in {span[2] for span in spans}
    assert all(whole[4] <= span[4] <= span[5] <= whole[5] + 1_000_000 for span in inside)
    assert sum(span[0] == "codec" for span in inside) == len(answer.responses)


def test_the_ensembles_steps_are_in_its_trace(traced: Any, receiver: Receiver, calling: Any) -> None:
    receiver.spans.clear()
    with calling(traced.grpc_url) as caller:
        assert not caller.ask("voxcpm2_pipeline", TEXT).errors
    spans = receiver.wait_for(lambda spans: names(spans) >= STEPS)
    assert names(spans) >= STEPS
    assert len({span[1] for span in spans}) == 1
