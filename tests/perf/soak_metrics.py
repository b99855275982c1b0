"""What a server's metrics port and its request log say, and whether it is what the callers saw."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import soak_family
from soak_tally import Seen

from triton_speech.stage import catalogue

Ends = Counter[tuple[str, str]]
"""How many ended with an outcome and a reason."""
GAUGES = (catalogue.LIVE, catalogue.QUEUE_DEPTH, catalogue.SLOTS_IN_USE)
"""All 0 where nothing runs."""


@dataclass(frozen=True)
class Scrape:
    """The metrics port at one moment: values by name and labels."""

    series: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def of(cls, url: str) -> Scrape:
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        found = re.findall(r"^(triton_speech_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
        return cls({(name, frozenset(re.findall(r'(\w+)="([^"]*)"', own))): float(value) for name, own, value in found})

    def ends(self) -> Ends:
        """Of requests to the front door."""
        ends: Ends = Counter()
        for (name, own), value in self.series.items():
            if name == catalogue.REQUESTS:
                labels = dict(own)
                ends[labels["outcome"], labels["reason"]] += int(value)
        return +ends

    def cache(self) -> dict[str, int]:
        """Events of the reference stage."""
        return {dict(own)["event"]: int(value) for (name, own), value in self.series.items() if name == catalogue.CACHE}

    def busy(self) -> list[str]:
        """Gauges that are not 0."""
        return [
            f"{name} of {dict(own)['model']} is {value:g}"
            for (name, own), value in self.series.items()
            if name in GAUGES and value
        ]


def lines_of(log: str) -> list[dict[str, Any]]:
    """The lines of requests and streams in a server's log."""
    return [json.loads(line) for line in log.splitlines() if line.startswith('{"event"')]


def logged_ends(lines: Iterable[Mapping[str, Any]]) -> Ends:
    """Of requests to the front door."""
    return Counter((line["outcome"], line["reason"]) for line in lines if line["event"] == "request")


def unlike_log(seen: Iterable[Seen], lines: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Streams that ended otherwise for their callers than the log says, or that it tells more than once or never."""
    told: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        told[line["id"]].append(line)
    for one in seen:
        its = told[one.request_id]
        if one.outcome in ("left", "hit"):
            # The server may have come to another end before it knew; of a stage that was killed there is no line.
            agrees = len(its) <= 1 and all(line["chunks"] >= one.chunks for line in its)
        elif one.is_by_triton or (
            one.pipeline == soak_family.chosen.pipelines[1] and one.reason in ("invalid_argument", "not_found")
        ):
            agrees = not its
        else:
            ends = [(line["outcome"], line["reason"]) for line in its]
            is_counted = all(line["chunks"] == one.chunks for line in its) or one.outcome != "ok"
            agrees = ends == [(one.outcome, one.reason)] and is_counted
        if not agrees:
            yield f"{one} is told as {its}"
