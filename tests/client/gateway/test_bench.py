"""The bench through a gateway."""

from __future__ import annotations

from typing import Any

import pytest

from triton_speech_client.cli import main

SHORT = ["--duration", "1.5", "--warmup", "0.5", "--concurrency", "2", "--texts", "short", "--max-seconds", "0.4"]


def test_the_bench_goes_through_a_gateway(gateway: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--gateway", gateway.url, *SHORT]) == 0
    out = capsys.readouterr().out
    assert "voxcpm2 through gateway" in out
    assert "failed:" not in out


def test_a_gateway_that_refuses_is_a_failure_with_its_status(gateway: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--gateway", gateway.url, *SHORT, "--voice", "nobody"]) == 1
    assert "failed: ServerError: HTTP 4" in capsys.readouterr().out
