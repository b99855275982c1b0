"""When a caller is told to try again: what the server asked for, in whole seconds."""

from __future__ import annotations

import pytest

from triton_speech_client import ServerUnavailable
from triton_speech_client.gateway.errors import api_error


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("voxcpm2 is full (4); try again in 7 s", "7"),
        ("voxcpm2 is full (4); try again in 2.5 s", "3"),
        ("voxcpm2 is full (4); try again in 0.2 s", "1"),
        ("voxcpm2 is full (4)", "1"),
        ("the talker stage has died; try again in 30 s", "30"),
        ("no connection to the server at 127.0.0.1:8001: refused", "1"),
    ],
)
def test_the_servers_hint_is_what_the_caller_is_told(text: str, seconds: str) -> None:
    answer = api_error(ServerUnavailable(text)).response()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == seconds
