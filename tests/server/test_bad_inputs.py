"""What a caller can get wrong, over every way in, and the sentence that tells it so: the rows of ``bad_inputs.yaml``.

Each row is refused with the field's name and what is allowed. One bad request costs nobody else anything: the stream
ends once, the text is clean, and the next request is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.server.bad_inputs import Row, read_rows
from tests.server.refusals import (
    UNCLEAN,
    assert_http_serves,
    open_gateway,
    over,
    refusal_of_body,
    refused_by_gateway,
    refused_over_grpc,
    refused_over_http,
)

ROWS = read_rows(Path(__file__).with_name("bad_inputs.yaml"))
GOOD = {"TEXT": "Hello.", "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.1], np.float32)}
FIELDS = {
    *("TEXT", "VOICE", "REFERENCE_AUDIO", "PROMPT_AUDIO", "PROMPT_TEXT", "INSTRUCTION", "LANGUAGE", "SEED"),
    *("CFG_VALUE", "INFERENCE_STEPS", "MAX_SECONDS", "CHUNK_SCHEDULE"),
}
Record = Callable[[str, object], None]


def skip_where_it_does_not_hold(row: Row, pipeline: str) -> None:
    if pipeline not in row.pipelines:
        pytest.skip(f"holds for {', '.join(row.pipelines)}")


@over("grpc", ROWS)
def test_bad_input_is_refused_with_field_and_limit(
    caller: Any, pipeline: str, row: Row, record_property: Record
) -> None:
    skip_where_it_does_not_hold(row, pipeline)
    record_property("answer_seconds", refused_over_grpc(caller, pipeline, row, GOOD))


@over("http", ROWS)
def test_bad_input_over_http_is_an_error_status_and_one_sentence(
    speech_server: Any, pipeline: str, row: Row, record_property: Record
) -> None:
    skip_where_it_does_not_hold(row, pipeline)
    record_property("answer_seconds", refused_over_http(speech_server, pipeline, row))


@pytest.mark.parametrize("body", [b"", b"{TEXT:", b"[]", b'"Hello."', b"\xff", b'{"TEXT": "Hello."', b"[" * 9999])
def test_what_is_no_json_object_is_refused_over_http(speech_server: Any, pipeline: str, body: bytes) -> None:
    """Triton 2.51 itself answers this with 500."""
    text, status, _ = refusal_of_body(speech_server, pipeline, body)
    assert status in (400, 500)
    assert text
    assert not UNCLEAN.search(text)
    assert_http_serves(speech_server, pipeline)


@pytest.fixture(scope="module")
def gateway_client(speech_server: Any) -> Iterator[Any]:
    with open_gateway(speech_server) as client:
        yield client


@over("gateway", ROWS)
def test_bad_input_to_the_gateway_is_refused_in_its_own_names(
    gateway_client: Any, pipeline: str, row: Row, record_property: Record
) -> None:
    skip_where_it_does_not_hold(row, pipeline)
    record_property("answer_seconds", refused_by_gateway(gateway_client, pipeline, row))


def test_the_table_covers_every_field_and_says_why_a_way_is_left_out() -> None:
    assert {row.field for row in ROWS} >= FIELDS
    assert len({row.name for row in ROWS}) == len(ROWS) >= 60
    assert all(row.http.get("cannot", "a reason") and row.gateway.get("cannot", "a reason") for row in ROWS)
