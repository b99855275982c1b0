"""The talker's calls of its family's diffusion stage: one for all streams of a step.

They are made on the engine's own thread. Triton takes calls of other models from any thread of a decoupled model, from
the end of ``initialize`` to the begin of ``finalize``; the streams that a call is made for have not ended, so the
requests that it belongs to are still being executed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch import Tensor

from ..errors import SpeechError
from .late import STOPPING_MARKS, has_died

log = logging.getLogger(__name__)

MODEL = "{family}_dit"
OUTPUT = "LATENT"
UNSIGNED = ("SEED",)
WIDE = ("SEED", "POSITION")


class DiffusionCalls:
    """Callable as a ``Diffuse``. Waits for the stage's answer: until then the talker has nothing to go on with.

    Before ``open`` it calls nobody and makes zeros: a model that is being loaded may not call others.

    Args:
        family: of the stage.
        dtype: of MU on its way.
    """

    def __init__(self, family: str, dtype: Literal["float32", "bfloat16"]) -> None:
        self._model = MODEL.format(family=family)
        self._dtype = getattr(torch, dtype)
        self._is_open = False

    def open(self) -> None:
        """Calls the stage from here on."""
        self._is_open = True

    def __call__(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Latents (B, P, D) fp32 of rows (B, ...).

        Raises:
            SpeechError: UNAVAILABLE where the stage has died, is full or the server stops.
            RuntimeError: it refuses the rows, or gives an answer that does not fit.
        """
        if not self._is_open:
            return torch.zeros_like(rows["COND"])
        call = pb_utils.InferenceRequest(
            model_name=self._model,
            inputs=[self._tensor(name, values) for name, values in rows.items()],
            requested_output_names=[OUTPUT],
        )
        try:
            response = call.exec()
        except Exception as error:
            raise self._failure(str(error)) from error
        if response.has_error():
            raise self._failure(response.error().message())
        (latents,) = response.output_tensors()
        return torch.from_numpy(np.array(latents.as_numpy(), dtype=np.float32)).view(rows["COND"].shape)

    def _tensor(self, name: str, values: Tensor) -> Any:
        if name == "MU" and self._dtype != torch.float32:
            return pb_utils.Tensor.from_dlpack(name, values.to(self._dtype).contiguous())
        array = values.contiguous().numpy()
        if name in UNSIGNED:
            array = array.view(np.uint64)
        elif values.dtype == torch.int64 and name not in WIDE:
            array = array.astype(np.int32)
        return pb_utils.Tensor(name, array)

    def _failure(self, text: str) -> Exception:
        """What Triton or the stage said, for those whose streams it ends."""
        error = SpeechError.from_text(text)
        if error.code != "UNAVAILABLE":
            return RuntimeError(f"{self._model}: {text}")
        if any(mark in text for mark in STOPPING_MARKS):
            return SpeechError("UNAVAILABLE", "the server is stopping")
        if "Exceeds maximum queue size" in text:
            return SpeechError("UNAVAILABLE", f"the diffusion stage is full: {text}")
        log.error("%s: %s", self._model, text)
        return has_died("diffusion")
