"""What a refusal must be, over each way in. A refused row costs nobody else anything: the next request is served."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest
from tests.server.bad_inputs import Row, gateway_name

# Neither paths nor tracebacks nor the names and versions of libraries.
UNCLEAN = re.compile(
    r"/\w+/|\.py\b|Traceback|\bline \d|0x[0-9a-f]{6}|libsnd|soundfile|soxr|torch|numpy|pydantic|pb_utils", re.IGNORECASE
)


def over(way: str, rows: list[Row]) -> Any:
    """Runs a test with each of the rows that can be sent on a way."""
    sendable = [row for row in rows if "cannot" not in getattr(row, way, {})]
    return pytest.mark.parametrize("row", sendable, ids=lambda row: row.name)


def refused_over_grpc(caller: Any, pipeline: str, row: Row, good: Mapping[str, Any]) -> float:
    """Sends a row, and then ``good``, which is served; returns how long the refusal took, in seconds."""
    answer = caller.ask(pipeline, row.tensors())
    assert not answer.responses
    (text,) = answer.errors
    assert row.says in text
    by_triton = _by_triton_itself(text, row.field) and not answer.finals
    assert by_triton or re.sub(r"^in ensemble '\w+', ", "", text).startswith(f"{row.field}: ")
    assert by_triton or answer.finals == 1
    assert not UNCLEAN.search(text)

    after = caller.ask(pipeline, good)
    assert (after.errors, after.finals, after.column("FINISH_REASON")[-1]) == ([], 1, b"length")
    return float(answer.seconds)


def refused_over_http(server: Any, pipeline: str, row: Row) -> float:
    """The same over Triton's HTTP: an error's status and one sentence."""
    text, status, seconds = refusal_of_body(server, pipeline, json.dumps(row.json()).encode())
    assert row.http.get("says", row.says) in text
    assert status == row.http.get("status", 400)
    if not row.http.get("names_no_field"):
        told = re.sub(r"^in ensemble '\w+', ", "", text)
        assert _by_triton_itself(text, row.field) or told.startswith(f"{row.field}: ")
    assert not UNCLEAN.search(text)
    assert_http_serves(server, pipeline)
    return seconds


def refused_by_gateway(client: Any, pipeline: str, row: Row) -> float:
    """The same through the gateway, in its own names."""
    began = time.perf_counter()
    answer = client.post("/v1/audio/speech", json={**row.gateway_json(), "model": pipeline})
    seconds = time.perf_counter() - began
    error = answer.json()["error"]
    assert answer.status_code == row.gateway.get("status", 400)
    field = gateway_name(row.field)
    assert error["param"] == field
    assert error["message"].startswith(f"{field}: ")
    assert row.gateway.get("says", row.says) in error["message"]
    assert error["code"] == row.gateway.get("code", "invalid_value")
    assert not UNCLEAN.search(error["message"])

    good = {"input": "Hello.", "model": pipeline, "seed": 1, "max_seconds": 0.1, "response_format": "pcm"}
    assert client.post("/v1/audio/speech", json=good).status_code == 200
    return seconds


def refusal_of_body(server: Any, pipeline: str, body: bytes) -> tuple[str, int, float]:
    """Text, status and seconds of a refusal over HTTP."""
    request = urllib.request.Request(f"{server.http_url}/v2/models/{pipeline}/generate_stream", body)
    began = time.perf_counter()
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=30)
    with error.value as answer:
        text = json.loads(answer.read().decode().removeprefix("data:"))["error"]
    return str(text), error.value.code, time.perf_counter() - began


def assert_http_serves(server: Any, pipeline: str) -> None:
    body = json.dumps({"TEXT": "Hello.", "SEED": 1, "MAX_SECONDS": 0.1}).encode()
    request = urllib.request.Request(f"{server.http_url}/v2/models/{pipeline}/generate_stream", body)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert b'"FINISH_REASON":"length"' in answer.read()


def open_gateway(server: Any) -> Any:
    """A client of a gateway before this server, in this process; a context."""
    testclient = pytest.importorskip("starlette.testclient")
    from triton_speech_client.gateway.app import create_app
    from triton_speech_client.gateway.settings import GatewaySettings

    return testclient.TestClient(create_app(GatewaySettings(triton=server.grpc_url)))


def _by_triton_itself(text: str, field: str) -> bool:
    """By a stage the field leads the text; by Triton's own check it stands in quotes."""
    return f"'{field}'" in text
