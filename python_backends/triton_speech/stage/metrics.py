"""A stage's totals at the server's metrics port."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from .totals import Changes, Definition, Key, Totals, labels_of

log = logging.getLogger(__name__)

PUSH_SECONDS = 0.25


class Metrics(Totals):
    """Totals that one thread tells to Triton, a few times a second.

    Two threads of a process that touch Triton's metrics at the same time crash the 2.51 server, so no other one does.
    A call takes 50 us of waiting, which is another reason to keep it away from the threads that make speech.

    Every series carries the model, and as ``replica`` the number of the model's instance: Triton would let instances
    share a series, but then their gauges overwrite each other, and the first that ends takes the series away from the
    others. Where the server offers no metrics, none are told.
    """

    def __init__(self, definitions: Iterable[Definition], args: Mapping[str, str]) -> None:
        """``args``: what ``initialize`` is given. Returns when every series stands at 0."""
        super().__init__(definitions)
        common = {"model": args["model_name"], "replica": args["model_instance_name"].rpartition("_")[2]}
        self._families: list[Any] = []
        self._metrics: dict[Key, Any] = {}
        if hasattr(pb_utils, "MetricFamily"):
            for definition in self.definitions:
                self._create(definition, common)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 10.0) -> None:
        """Tells what is left and lets go, in ``finalize``, while the server still listens: metrics before families."""
        self._closing.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.error("the metrics thread does not end")
            return
        self._metrics.clear()
        self._families.clear()

    def _create(self, definition: Definition, common: Mapping[str, str]) -> None:
        kind = getattr(pb_utils.MetricFamily, definition.kind.upper())
        family = pb_utils.MetricFamily(name=definition.name, description=definition.description, kind=kind)
        self._families.append(family)
        bounds = {"buckets": list(definition.buckets)} if definition.buckets else {}
        for key in definition.keys:
            self._metrics[key] = family.Metric(labels=labels_of(definition, key, common), **bounds)

    def _run(self) -> None:
        while not self._closing.wait(PUSH_SECONDS):
            self._push()
        self._push()

    def _push(self) -> None:
        changes = self.changes()
        if not self._metrics:
            return
        try:
            self._tell(changes)
        except Exception:
            log.exception("the server takes no more metrics; none are told from here on")
            self._metrics.clear()

    def _tell(self, changes: Changes) -> None:
        for key, growth in changes.counters.items():
            self._metrics[key].increment(growth)
        for key, value in changes.gauges.items():
            self._metrics[key].set(value)
        for key, values in changes.observations.items():
            for value in values:
                self._metrics[key].observe(value)
