"""The frontend stage: a request's fields in, tokens and validated settings out."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..errors import unknown
from ..families.registry import find_checkpoint, load_family
from ..request import RequestLimits, parse_request
from .triton import (
    Array,
    checkpoints_folder,
    read_inputs,
    respond,
    respond_error,
    start_stage,
    text_array,
)

BUILT_IN_VOICE = "default"
"""The voice that a checkpoint speaks in when it is given none."""


class FrontendStage:
    """Binds a family's frontend to Triton. One response for each request, not decoupled."""

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        parameters = family.FrontendParameters.from_triton(args["model_config"])
        folder = find_checkpoint(checkpoints_folder(args), parameters.checkpoint, family.ARCHITECTURE)
        self._frontend = family.load_frontend(folder, parameters)
        self._limits = RequestLimits(
            parameters.max_text_chars, parameters.max_instruction_chars, parameters.max_seconds
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            return respond(self._prepare(read_inputs(request)), request.requested_output_names())
        except Exception as error:
            return respond_error(error, request.request_id())

    def _prepare(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        request = parse_request(inputs, self._limits, self._frontend.sampling)
        if request.voice not in (None, BUILT_IN_VOICE):
            raise unknown("VOICE", str(request.voice), BUILT_IN_VOICE)
        prepared = self._frontend.prepare(request)
        # The seed is settled here, so that both pipelines hand the talker the same kind of request.
        seed = secrets.randbits(64) if request.seed is None else request.seed
        schedule = () if request.chunk_schedule is None else request.chunk_schedule.frames
        outputs = {
            "STREAM_ID": text_array(uuid.uuid4().hex),
            "TOKENS": np.array(prepared.tokens, dtype=np.int32),
            "SEED": np.array([seed], dtype=np.uint64),
            "MAX_FRAMES": np.array([prepared.max_frames], dtype=np.int32),
            "CHUNK_SCHEDULE": np.array(schedule, dtype=np.int32),
        }
        for field in self._frontend.sampling:
            dtype = np.int32 if field.integer else np.float32
            outputs[field.name] = np.array([request.sampling[field.name]], dtype=dtype)
        return outputs
