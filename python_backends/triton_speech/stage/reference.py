"""The reference stage: audio files in, latent patches out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from ..audio.cache import AudioCache, content_key
from ..audio.read import AudioLimits, Samples, read_audio
from ..errors import full
from ..families.registry import find_checkpoint, load_family
from ..parameters import DeviceParameters
from .device import choose_device
from .loop import LoopThread
from .metrics import Counters
from .triton import Array, checkpoints_folder, finish, read_inputs, respond, respond_error, start_stage

ROLES = {"REFERENCE": "reference", "PROMPT": "prompt"}
CACHE_EVENTS = ("hits", "misses", "waits", "evictions")


class ReferenceParameters(DeviceParameters):
    min_seconds: float = Field(default=1.0, ge=0)
    max_seconds: float = Field(default=30.0, gt=0)
    max_bytes: int = Field(default=64 * 2**20, gt=0)
    min_sample_rate: int = Field(default=8_000, gt=0)
    max_sample_rate: int = Field(default=192_000, gt=0)
    cache_entries: int = Field(default=256, ge=0)
    cache_bytes: int = Field(default=64 * 2**20, ge=0)
    max_encodes: int = Field(default=2, ge=1)
    """Recordings that are encoded at once, so that a short one does not wait for a long one."""
    max_requests: int = Field(default=64, ge=1)
    """Requests with audio that are read, encoded or waiting; one more is refused."""

    @property
    def audio_limits(self) -> AudioLimits:
        return AudioLimits(
            self.min_seconds, self.max_seconds, self.max_bytes, self.min_sample_rate, self.max_sample_rate
        )


class ReferenceStage:
    """Binds a family's reference encoder to Triton. One response for each request, not decoupled.

    ``execute`` only hands over. Files are read by some threads and encoded by others, and the answer is sent when it is
    there, so that what the cache holds is never kept waiting by an encoder at work.

    A recording that is absent gives the latents of a stored voice, where the request brings some, or an empty tensor
    (0, P, D), so that a pure ensemble can run this step for every request.
    """

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        self._parameters = ReferenceParameters.from_triton(args["model_config"])
        self._limits = self._parameters.audio_limits
        folder = find_checkpoint(checkpoints_folder(args), self._parameters.checkpoint, family.ARCHITECTURE)
        self._encoder = family.load_reference_encoder(folder, device=choose_device(self._parameters, args))
        self._encoder.encode(np.zeros(self._encoder.sample_rate, dtype=np.float32), "reference")
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="read")
        self._encoders = ThreadPoolExecutor(self._parameters.max_encodes, thread_name_prefix="encode")
        self._cache = AudioCache(self._parameters.cache_entries, self._parameters.cache_bytes)
        self._counters = Counters(
            "triton_speech_reference_cache_total",
            "What happened in the cache of encoded recordings; each miss is one encode",
            args["model_name"],
            "event",
            CACHE_EVENTS,
        )
        self._running = 0
        self._loop = LoopThread("reference")

    def execute(self, requests: list[Any]) -> list[None]:
        for request in requests:
            sender = request.get_response_sender()
            try:
                inputs, requested = read_inputs(request), set(request.requested_output_names())
                self._loop.start(self._answer(sender, inputs, requested, request.request_id()))
            except Exception as error:
                finish(sender, respond_error(error, request.request_id()))
        # Triton's way to say that these answers come later.
        return [None] * len(requests)

    def finalize(self) -> None:
        self._loop.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._encoders.shutdown(wait=False, cancel_futures=True)
        self._counters.close()

    async def _answer(self, sender: Any, inputs: Mapping[str, Array], requested: set[str], request_id: str) -> None:
        try:
            response = respond(await self._latents(inputs), requested)
        except Exception as error:
            response = respond_error(error, request_id)
        finish(sender, response)

    async def _latents(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = {f"{name}_LATENTS": self._without_audio(inputs, f"{name}_LATENTS") for name in ROLES}
        given = [name for name in ROLES if f"{name}_AUDIO" in inputs]
        if not given:
            return outputs
        if self._running >= self._parameters.max_requests:
            raise full("the reference encoder", self._parameters.max_requests)
        self._running += 1
        try:
            for name in given:
                data = bytes(inputs[f"{name}_AUDIO"].reshape(-1)[0])
                outputs[f"{name}_LATENTS"] = await self._encode(f"{name}_AUDIO", data, ROLES[name])
        finally:
            self._running -= 1
            stats = self._cache.stats
            self._counters.show({name: getattr(stats, name) for name in CACHE_EVENTS})
        return outputs

    def _without_audio(self, inputs: Mapping[str, Array], name: str) -> Array:
        return inputs.get(name, np.zeros((0, *self._encoder.patch_shape), dtype=np.float32))

    async def _encode(self, field: str, data: bytes, role: str) -> Array:
        loop = asyncio.get_running_loop()
        samples, key = await loop.run_in_executor(self._readers, self._read, field, data, role)
        return await self._cache.get(
            key, lambda: loop.run_in_executor(self._encoders, self._encoder.encode, samples, role)
        )

    def _read(self, field: str, data: bytes, role: str) -> tuple[Samples, bytes]:
        samples = read_audio(data, field, sample_rate=self._encoder.sample_rate, limits=self._limits)
        return samples, content_key(samples, role)
