"""The reference stage: audio files in, latent patches out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from ..audio.cache import AudioCache, content_key
from ..audio.read import AudioLimits, read_audio
from ..families.registry import find_checkpoint, load_family
from ..parameters import DeviceParameters
from .device import choose_device
from .triton import Array, checkpoints_folder, read_inputs, respond, respond_error, start_stage

ROLES = {"REFERENCE": "reference", "PROMPT": "prompt"}


class ReferenceParameters(DeviceParameters):
    min_seconds: float = Field(default=1.0, ge=0)
    max_seconds: float = Field(default=30.0, gt=0)
    max_bytes: int = Field(default=32 * 2**20, gt=0)
    cache_entries: int = Field(default=256, ge=0)
    cache_bytes: int = Field(default=64 * 2**20, ge=0)


class ReferenceStage:
    """Binds a family's reference encoder to Triton. One response for each request, not decoupled.

    Absent audio gives an empty tensor (0, P, D), so that a pure ensemble can run this step for every request. The
    optional input STREAM_ID is not read: with it an ensemble makes this step wait for the frontend.
    """

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        parameters = ReferenceParameters.from_triton(args["model_config"])
        folder = find_checkpoint(checkpoints_folder(args), parameters.checkpoint, family.ARCHITECTURE)
        self._encoder = family.load_reference_encoder(folder, device=choose_device(parameters, args))
        self._limits = AudioLimits(parameters.min_seconds, parameters.max_seconds, parameters.max_bytes)
        self._cache = AudioCache(parameters.cache_entries, parameters.cache_bytes)
        self._encoder.encode(np.zeros(self._encoder.sample_rate, dtype=np.float32), "reference")

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = read_inputs(request)
            outputs = {f"{name}_LATENTS": self._encode(inputs, name) for name in ROLES}
            return respond(outputs, request.requested_output_names())
        except Exception as error:
            return respond_error(error, request.request_id())

    def _encode(self, inputs: Mapping[str, Array], name: str) -> Array:
        field = f"{name}_AUDIO"
        if field not in inputs:
            return np.zeros((0, *self._encoder.patch_shape), dtype=np.float32)
        data = bytes(inputs[field].reshape(-1)[0])
        samples = read_audio(data, field, sample_rate=self._encoder.sample_rate, limits=self._limits)
        role = ROLES[name]
        return self._cache.get_or_compute(content_key(samples, role), lambda: self._encoder.encode(samples, role))
