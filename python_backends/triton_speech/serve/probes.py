"""Asks a model something tiny that it has to answer itself, whatever the model is."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triton_speech.probe import PROBE_ID

_PING = "ping"
_DEAD_MARKS = ("Failed to obtain the health mutex", "has no available versions", "is not ready")


@dataclass(frozen=True)
class Probe:
    """A question to a model, made from the model's own configuration.

    A stage with an input ``CONTROL`` is told "ping", which goes through all of the stage's threads and takes no place.
    Any other model gets what it cannot do without, and nothing where all inputs are optional. It may refuse that: a
    refusal in the model's own words shows that it lives, just as an answer does.
    """

    model: str
    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Probe:
        """``config`` as the server gives it."""
        inputs: dict[str, Any] = {}
        for entry in config["input"]:
            if entry["name"] == "CONTROL":
                inputs["CONTROL"] = _PING
            elif not entry.get("optional", False):
                inputs[entry["name"]] = _nothing(entry)
        return cls(config["name"], inputs)

    def ask(self, url: str, timeout: float) -> str:
        """What is wrong with the model, as the end of a sentence; empty when it has answered in time."""
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=timeout)
        try:
            body = json.dumps({"id": PROBE_ID, **self.inputs})
            connection.request("POST", f"/v2/models/{self.model}/generate_stream", body)
            text = connection.getresponse().read().decode("utf-8", errors="replace")
        except TimeoutError:
            return f"did not answer within {timeout:g} s"
        except (OSError, http.client.HTTPException) as error:
            return f"could not be asked: {error}"
        finally:
            connection.close()
        # A pipeline repeats what Triton says of a stage; that is the stage's fault.
        is_dead = f"Stub process '{self.model}_" in text or any(
            mark in text and f"'{self.model}" in text for mark in _DEAD_MARKS
        )
        return "is not healthy, says Triton" if is_dead else ""


def _nothing(entry: Mapping[str, Any]) -> Any:
    value = "" if entry["data_type"] == "TYPE_STRING" else 0
    size = 1
    for dim in entry["dims"]:
        size *= max(int(dim), 1)
    return value if size == 1 else [value] * size
