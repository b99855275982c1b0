"""The reference stage: audio files in, latent patches out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from ..audio.cache import AudioCache, content_key
from ..audio.read import AudioLimits, Samples, read_audio
from ..errors import full, invalid
from ..families.registry import find_checkpoint, load_family
from ..parameters import DeviceParameters
from . import catalogue
from .device import choose_device
from .loop import LoopThread
from .metrics import Metrics
from .triton import Array, checkpoints_folder, finish, read_inputs, respond, respond_error, start_stage

ROLES = {"REFERENCE": "reference", "PROMPT": "prompt"}


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
    (0, P, D), so that a pure ensemble can run this step for every request. Where a family has several voices in a
    request, its encoder joins the latents of recordings and of stored voices.
    """

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        self._parameters = ReferenceParameters.from_triton(args["model_config"])
        self._limits = self._parameters.audio_limits
        folder = find_checkpoint(checkpoints_folder(args), self._parameters.checkpoint, family.ARCHITECTURE)
        self._most_voices = family.MOST_VOICES
        self._encoder = family.load_reference_encoder(folder, device=choose_device(self._parameters, args))
        self._encoder.warm_up()
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="read")
        self._encoders = ThreadPoolExecutor(self._parameters.max_encodes, thread_name_prefix="encode")
        self._cache = AudioCache(self._parameters.cache_entries, self._parameters.cache_bytes)
        self._running = 0
        self._metrics = Metrics(catalogue.REFERENCE, args)
        self._metrics.follow(catalogue.LIVE, read=lambda: self._running)
        self._metrics.follow(catalogue.CACHE_ENTRIES, read=lambda: self._cache.stats.entries)
        self._metrics.follow(catalogue.CACHE_BYTES, read=lambda: self._cache.stats.bytes)
        for event in catalogue.CACHE_EVENTS:
            self._metrics.follow(catalogue.CACHE, event, read=partial(self._cache_events, event))
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
        self._metrics.close()

    async def _answer(self, sender: Any, inputs: Mapping[str, Array], requested: set[str], request_id: str) -> None:
        try:
            response = respond(await self._latents(inputs), requested)
            how = catalogue.ANSWERED
        except Exception as error:
            response = respond_error(error, request_id)
            how = catalogue.how_it_failed(error)
        finish(sender, response)
        # Without a recording it only passes on what there is.
        if any(f"{name}_AUDIO" in inputs for name in ROLES):
            self._metrics.count(catalogue.STAGE_REQUESTS, *how)

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
                files = [bytes(file) for file in inputs[f"{name}_AUDIO"].reshape(-1)]
                if not 1 <= len(files) <= self._most_voices:
                    # The frontend says the same, but does not keep the front door from asking here meanwhile.
                    raise invalid(f"{name}_AUDIO", f"has {len(files)} elements, 1 to {self._most_voices} are allowed")
                encoded = await self._encode_all(f"{name}_AUDIO", files, ROLES[name])
                joins = self._most_voices > 1
                stored = outputs[f"{name}_LATENTS"]
                outputs[f"{name}_LATENTS"] = self._encoder.join(stored, encoded) if joins else encoded[0]
        finally:
            self._running -= 1
        return outputs

    def _cache_events(self, event: str) -> int:
        return int(getattr(self._cache.stats, event))

    def _without_audio(self, inputs: Mapping[str, Array], name: str) -> Array:
        return inputs.get(name, np.zeros((0, *self._encoder.patch_shape), dtype=np.float32))

    async def _encode_all(self, field: str, files: Sequence[bytes], role: str) -> list[Array]:
        """Of several that cannot be used the first one is told."""
        fields = [field] if len(files) == 1 else [f"{field}: recording {place + 1}" for place in range(len(files))]
        encoding = (self._encode(name, data, role) for name, data in zip(fields, files, strict=True))
        encoded = await asyncio.gather(*encoding, return_exceptions=True)
        for one in encoded:
            if isinstance(one, BaseException):
                raise one
        return [one for one in encoded if not isinstance(one, BaseException)]

    async def _encode(self, field: str, data: bytes, role: str) -> Array:
        loop = asyncio.get_running_loop()
        samples, key = await loop.run_in_executor(self._readers, self._read, field, data, role)
        return await self._cache.get(
            key, lambda: loop.run_in_executor(self._encoders, self._encoder.encode, samples, role)
        )

    def _read(self, field: str, data: bytes, role: str) -> tuple[Samples, bytes]:
        samples = read_audio(data, field, sample_rate=self._encoder.sample_rate, limits=self._limits)
        return samples, content_key(samples, role)
