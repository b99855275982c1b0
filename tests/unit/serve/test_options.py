"""What the launcher says to options that cannot work, before a server is started."""

from __future__ import annotations

import argparse

import pytest

from triton_speech.serve.command import add_arguments, run


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--trace-otlp", "collector:4318"], "--trace-otlp collector:4318 must be a URL"),
        (["--pipeline", "voxcpm2", "nobody"], "--pipeline nobody is not known; known are "),
        (["--connection-seconds", "0.5"], "--connection-seconds 0.5 must be at least 1"),
        (["--trace-otlp", "http://127.0.0.1:4318/v1/traces", "--trace-rate", "0"], "--trace-rate 0 must be at least 1"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert run(parser.parse_args(options)) == 1
    assert told in capsys.readouterr().err
