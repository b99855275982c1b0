"""What the launcher tells and asks its server about models, over HTTP.

Whoever may load a model may run code in the server. So this part of Triton's protocols is locked, and each server has
a key of its own.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

KEY_HEADER = "triton-speech-key"
_LOCKED = "model-repository"
# The thread that loads a model serves no other connection meanwhile, and a new one may be given to it all the same.
_ASK_SECONDS = 0.4
_ASK_TIMES = 12
_HTTP_THREADS = 32

# A proxy of the environment must not stand between the launcher and its own server.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ControlError(Exception):
    """The server refused, failed or did not answer: one sentence."""


@dataclass(frozen=True)
class ModelControl:
    """``url`` is the server's, as ``http://host:port``."""

    url: str
    key: str

    def options(self) -> list[str]:
        """Options of tritonserver that allow models to be loaded and unloaded, by the holder of the key alone."""
        lock = f"{_LOCKED}:{KEY_HEADER}={self.key}"
        return [
            "--model-control-mode=explicit",
            "--load-model=*",
            f"--http-thread-count={_HTTP_THREADS}",
            f"--http-restricted-api={lock}",
            f"--grpc-restricted-protocol={lock}",
        ]

    def is_ready(self, timeout: float) -> bool:
        """Whether the server says of itself that it is ready."""
        return self._answers("ready", timeout)

    def is_live(self, timeout: float) -> bool:
        """Whether the server answers at all."""
        return self._answers("live", timeout)

    def states(self, timeout: float = _ASK_SECONDS) -> dict[str, str]:
        """State by model: ``READY``, ``LOADING``, ``UNLOADING`` (requests are still running), ``UNAVAILABLE``."""
        index = self._ask("repository/index", timeout, b"{}", times=_ASK_TIMES)
        return {model["name"]: model.get("state", "") for model in index}

    def config(self, model: str) -> dict[str, Any]:
        """A model's configuration as it was loaded."""
        return dict(self._ask(f"models/{model}/config", _ASK_SECONDS, times=_ASK_TIMES))

    def load(self, model: str, timeout: float) -> None:
        """Returns when the model is ready."""
        self._ask(f"repository/models/{model}/load", timeout, b"{}")

    def unload(self, model: str) -> None:
        """Refuses new requests from here on and returns at once; those that run are answered."""
        # By itself each step of an ensemble would go along.
        body = b'{"parameters": {"unload_dependents": false}}'
        self._ask(f"repository/models/{model}/unload", _ASK_SECONDS, body, times=_ASK_TIMES)

    def _answers(self, what: str, timeout: float) -> bool:
        try:
            with _opener.open(f"{self.url}/v2/health/{what}", timeout=timeout):
                return True
        except OSError:  # not yet listening, or an HTTP status other than 200
            return False

    def _ask(self, path: str, timeout: float, body: bytes | None = None, *, times: int = 1) -> Any:
        """The answer, as JSON; asked again, ``times`` in all, on another connection where none comes in time."""
        request = urllib.request.Request(f"{self.url}/v2/{path}", body, {KEY_HEADER: self.key})
        try:
            with _opener.open(request, timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ControlError(_reason(error)) from error
        except OSError as error:
            if isinstance(getattr(error, "reason", error), TimeoutError) and times > 1:
                return self._ask(path, timeout, body, times=times - 1)
            raise ControlError(f"the server did not answer: {getattr(error, 'reason', error)}") from error
        return json.loads(text) if text else None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]).partition("\n")[0]
    except (OSError, ValueError, KeyError, TypeError):
        return f"the server answered with HTTP {error.code}"
