"""Counters of a stage at the server's metrics port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils


class Counters:
    """One counter for each value of a label, such as ``name{model="...",result="hit"}``.

    All of a stage's counters belong to one thread: two that count at the same time crash the 2.51 server. Where the
    server offers no metrics, nothing is counted.
    """

    def __init__(self, name: str, description: str, model: str, label: str, values: Sequence[str]) -> None:
        self._told = dict.fromkeys(values, 0)
        self._metrics: dict[str, Any] = {}
        self._family: Any = None
        if hasattr(pb_utils, "MetricFamily"):
            self._family = pb_utils.MetricFamily(name=name, description=description, kind=pb_utils.MetricFamily.COUNTER)
            self._metrics = {value: self._family.Metric(labels={"model": model, label: value}) for value in values}

    def show(self, totals: Mapping[str, int]) -> None:
        """Raises each counter to its total."""
        for value, metric in self._metrics.items():
            if (more := totals[value] - self._told[value]) > 0:
                metric.increment(more)
                self._told[value] = totals[value]

    def close(self) -> None:
        """Lets go of the counters in ``finalize``, while the server still listens; the metrics before their family."""
        self._metrics.clear()
        self._family = None
