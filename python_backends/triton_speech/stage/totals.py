"""What a process has counted, before anybody is told: plain numbers, changed from any thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Key = tuple[str, ...]
"""A metric's name, then the values of its labels in the order of the definition."""


@dataclass(frozen=True)
class Definition:
    """One metric.

    Attributes:
        name: as Prometheus knows it.
        labels: names of its labels, without those that all metrics have.
        series: all values that the labels take together; bounded, and shown as 0 from the start, so that the first
            event is an increase like any other.
        buckets: upper bounds of a histogram, rising.
    """

    name: str
    kind: Kind
    description: str
    labels: tuple[str, ...] = ()
    series: tuple[tuple[str, ...], ...] = ((),)
    buckets: tuple[float, ...] = ()

    @property
    def keys(self) -> list[Key]:
        return [(self.name, *values) for values in self.series]


@dataclass
class Changes:
    """What has happened since the last look: growth of counters, gauges that are new, values that were observed."""

    counters: dict[Key, float] = field(default_factory=dict)
    gauges: dict[Key, float] = field(default_factory=dict)
    observations: dict[Key, list[float]] = field(default_factory=dict)


class Totals:
    """Counters, gauges and observations by name and labels.

    Where the truth stands elsewhere already (the length of a queue, what an engine has counted for itself), ``follow``
    reads it when somebody looks, which costs the owner nothing.
    """

    def __init__(self, definitions: Iterable[Definition]) -> None:
        self.definitions = tuple(definitions)
        self._lock = threading.Lock()
        self._counters = self._zeros("counter")
        self._gauges = self._zeros("gauge")
        self._observed: dict[Key, list[float]] = {key: [] for key in self._zeros("histogram")}
        self._followed: dict[Key, Callable[[], float]] = {}
        self._told: dict[Key, float] = {}

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Raises a counter.

        Raises:
            KeyError: no definition has this name with these labels.
        """
        key = (name, *labels)
        with self._lock:
            self._counters[key] += by

    def set(self, name: str, *labels: str, to: float) -> None:
        """Sets a gauge; raises KeyError as ``count`` does."""
        key = (name, *labels)
        with self._lock:
            if key not in self._gauges:
                raise KeyError(key)
            self._gauges[key] = to

    def observe(self, name: str, value: float) -> None:
        """Adds a value to a histogram; raises KeyError as ``count`` does."""
        with self._lock:
            self._observed[(name,)].append(value)

    def follow(self, name: str, *labels: str, read: Callable[[], float]) -> None:
        """Takes a counter's total, or a gauge's value, from ``read``, on the thread that looks."""
        key = (name, *labels)
        if key not in self._counters and key not in self._gauges:
            raise KeyError(key)
        self._followed[key] = read

    def changes(self) -> Changes:
        """What has changed since the last call; the first one has every gauge."""
        read = {key: value() for key, value in self._followed.items()}
        with self._lock:
            for key, value in read.items():
                (self._counters if key in self._counters else self._gauges)[key] = value
            changes = Changes()
            for key, total in self._counters.items():
                if total > (before := self._told.get(key, 0)):
                    changes.counters[key] = total - before
                    self._told[key] = total
            for key, value in self._gauges.items():
                if self._told.get(key) != value:
                    changes.gauges[key] = self._told[key] = value
            changes.observations = {key: values for key, values in self._observed.items() if values}
            self._observed.update((key, []) for key in changes.observations)
        return changes

    def _zeros(self, kind: Kind) -> dict[Key, float]:
        chosen = (definition.keys for definition in self.definitions if definition.kind == kind)
        return dict.fromkeys(itertools.chain.from_iterable(chosen), 0)


def labels_of(definition: Definition, key: Key, common: Mapping[str, str]) -> dict[str, str]:
    """The labels of one series by name."""
    return {**common, **dict(zip(definition.labels, key[1:], strict=True))}
