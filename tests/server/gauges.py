"""What a running server's metrics say at this moment."""

from __future__ import annotations

import re
import time
import urllib.request
from typing import Any

SETTLE_SECONDS = 10.0


def gauge(server: Any, name: str, model: str) -> float:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        text = answer.read().decode()
    (value,) = re.findall(rf'^triton_speech_{name}\{{.*model="{model}".*\}} (\S+)', text, re.MULTILINE)
    return float(value)


def wait_for_queue(server: Any, depth: int) -> None:
    """Until so many streams wait for a slot of the talker."""
    until = time.monotonic() + SETTLE_SECONDS
    while (waiting := gauge(server, "queue_depth", "voxcpm2_talker")) != depth:
        assert time.monotonic() < until, f"{waiting:g} streams wait, not {depth}"
        time.sleep(0.02)
