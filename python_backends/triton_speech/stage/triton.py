"""All that touches ``triton_python_backend_utils``: tensors in, responses and errors out."""

from __future__ import annotations

import json
import locale
import logging
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# Its classes appear only after model.py is imported, so they are looked up where they are used.
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from ..errors import SpeechError, echoed, invalid

log = logging.getLogger(__name__)

MAX_TIMEOUT = 24 * 3600 * 10**6
"""Microseconds. Triton takes a negative one for an age."""

Array = NDArray[Any]


def start_stage(args: Mapping[str, str]) -> None:
    """First thing in every ``initialize``: the stub starts with an ASCII locale and no logging."""
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s {args['model_name']}: %(message)s")


def checkpoints_folder(args: Mapping[str, str]) -> Path:
    """Checkpoints lie beside the folder that holds the model repository."""
    return Path(args["model_repository"]).parents[1] / "checkpoints"


def voices_folder(args: Mapping[str, str]) -> Path:
    """Stored voices lie beside the folder that holds the model repository, as checkpoints do."""
    return Path(args["model_repository"]).parents[1] / "voices"


def read_inputs(request: Any) -> dict[str, Array]:
    """Arrays by input name; absent optional inputs are absent here too. BYTES come as object arrays."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def deadline_seconds(request: Any) -> float | None:
    """How long the caller gives a request, by Triton's own parameter ``timeout`` in microseconds; None for ever.

    Raises:
        SpeechError: INVALID_ARG where it is no such number.
    """
    # Triton's ``generate_stream`` does not know it, and passes it on among the parameters that are the model's own.
    timeout = request.timeout() or json.loads(request.parameters() or "{}").get("timeout", 0)
    if isinstance(timeout, bool) or not isinstance(timeout, int) or not 0 <= timeout <= MAX_TIMEOUT:
        raise invalid("TIMEOUT", f"{echoed(str(timeout))} is not allowed, only 0 to {MAX_TIMEOUT} microseconds are")
    return timeout / 1e6 or None


def read_text(inputs: Mapping[str, Array], name: str) -> str:
    """The one string of an internal input.

    Raises:
        SpeechError: INVALID_ARG when it is missing, not one string, or not UTF-8.
    """
    if name not in inputs or inputs[name].size != 1:
        raise invalid(name, "must be one string")
    try:
        return bytes(inputs[name].reshape(-1)[0]).decode()
    except UnicodeDecodeError as error:
        raise invalid(name, "is not UTF-8") from error


def read_number(inputs: Mapping[str, Array], name: str) -> Any:
    """The one number of an internal input.

    Raises:
        SpeechError: INVALID_ARG when it is missing or not one number.
    """
    if name not in inputs or inputs[name].size != 1:
        raise invalid(name, "must be one number")
    return inputs[name].reshape(-1)[0]


def text_array(*texts: str) -> Array:
    return np.array([text.encode() for text in texts], dtype=np.object_)


def tensors(arrays: Mapping[str, Array]) -> list[Any]:
    """Arrays as inputs of a call."""
    return [pb_utils.Tensor(name, array) for name, array in arrays.items()]


def respond(outputs: Mapping[str, Array], requested: Collection[str]) -> Any:
    """A response with the outputs that were asked for, and no other: the 2.51 stub crashes on surplus ones."""
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, array) for name, array in outputs.items() if name in requested]
    )


def respond_error(error: BaseException, request_id: str) -> Any:
    """The response for a failure."""
    told = for_caller(error, request_id)
    code = getattr(pb_utils.TritonError, told.code)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(told.text, code))


def for_caller(error: BaseException, request_id: str) -> SpeechError:
    """What the caller did not cause goes to the log, and only its id to the caller."""
    if isinstance(error, SpeechError):
        return error
    request_id = request_id or uuid.uuid4().hex
    log.error("request %s failed", request_id, exc_info=error)
    return SpeechError("INTERNAL", f"internal error; the server's log has it under request {request_id}")


def tell_error(error: BaseException, request_id: str, requested: Collection[str]) -> Any:
    """The same as data, in the output ERROR, for a caller that asks for it.

    In a stream between two stages the 2.51 server loses one error response in ten, and leaves a bare end.
    """
    if "ERROR" not in requested:
        return respond_error(error, request_id)
    return respond({"ERROR": text_array(for_caller(error, request_id).text)}, requested)


class Reply:
    """A response sender that is left alone once its stream has ended.

    Triton frees the other side of a sender with the final response. A call of ``is_cancelled`` after that reads freed
    memory and takes the whole server down.
    """

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self.ended = False

    def send(self, response: Any) -> None:
        self._sender.send(response)

    def finish(self, response: Any) -> None:
        """Sends the last response."""
        self.ended = True
        finish(self._sender, response)

    def is_cancelled(self) -> bool:
        """Whether the caller has gone; False once the stream has ended."""
        return not self.ended and bool(self._sender.is_cancelled())


def finish(sender: Any, response: Any = None) -> None:
    """Sends a stream's last response, or its bare end."""
    if response is None:
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    else:
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
