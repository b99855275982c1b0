"""The codec stage: chunks of latent patches in, audio out, with each stream's decoder state kept between chunks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from ..audio.pcm import to_pcm16
from ..errors import SpeechError, invalid
from ..families.registry import find_checkpoint, load_family
from ..parameters import DeviceParameters
from ..streaming.slots import SlotTable
from .device import choose_device
from .triton import (
    Array,
    checkpoints_folder,
    read_inputs,
    read_number,
    read_text,
    respond,
    respond_error,
    start_stage,
    text_array,
)

SCRATCH_SLOT = 0


class CodecParameters(DeviceParameters):
    max_streams: int = Field(default=64, ge=1)
    idle_seconds: float = Field(default=60.0, gt=0)
    """A stream silent for longer may lose its slot to a new one."""
    max_chunk_frames: int = Field(default=128, ge=1)


@dataclass(frozen=True)
class _Chunk:
    stream: str
    index: int
    patches: Array
    """(T, P, D) fp32."""
    skipped: int
    """Leading patches that only prime the decoder."""
    finish: str


class CodecStage:
    """Binds a family's codec to Triton. One response for each chunk, not decoupled."""

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        self._parameters = CodecParameters.from_triton(args["model_config"])
        folder = find_checkpoint(checkpoints_folder(args), self._parameters.checkpoint, family.ARCHITECTURE)
        capacity = self._parameters.max_streams
        self._codec = family.load_codec(folder, slots=capacity + 1, device=choose_device(self._parameters, args))
        self._slots = SlotTable(capacity, self._parameters.idle_seconds, first=SCRATCH_SLOT + 1)
        # The first decode pays for torch's start; no caller should.
        self._codec.decode(torch.zeros(1, 1, *self._codec.patch_shape), [SCRATCH_SLOT])

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = read_inputs(request)
            if "CONTROL" in inputs:
                return self._control(inputs)
            requested = request.requested_output_names()
            return respond(self._decode(self._read(inputs), "PCM16" in requested), requested)
        except Exception as error:
            return respond_error(error, request.request_id())

    def _control(self, inputs: Mapping[str, Array]) -> Any:
        command = read_text(inputs, "CONTROL")
        if command != "release":
            raise invalid("CONTROL", f"{command!r} is not allowed, only 'release' is")
        self._slots.release(read_text(inputs, "STREAM_ID"))
        return respond({}, ())

    def _read(self, inputs: Mapping[str, Array]) -> _Chunk:
        patches = inputs.get("LATENTS")
        patch, dims = self._codec.patch_shape
        if patches is None or patches.shape[1:] != (patch, dims):
            raise invalid("LATENTS", f"must have shape [n, {patch}, {dims}]")
        limit = self._parameters.max_chunk_frames
        if len(patches) > limit:
            raise invalid("LATENTS", f"holds {len(patches)} frames, at most {limit} are allowed")
        skipped = int(read_number(inputs, "SKIP_FRAMES"))
        if not 0 <= skipped <= len(patches):
            raise invalid("SKIP_FRAMES", f"is {skipped}, must be 0 to {len(patches)}")
        return _Chunk(
            stream=read_text(inputs, "STREAM_ID"),
            index=int(read_number(inputs, "CHUNK_INDEX")),
            patches=patches,
            skipped=skipped,
            finish=read_text(inputs, "FINISH_REASON"),
        )

    def _decode(self, chunk: _Chunk, wants_pcm16: bool) -> dict[str, Array]:
        slot = self._slot(chunk)
        try:
            samples = self._samples(chunk, slot)
        except Exception:
            self._slots.release(chunk.stream)
            raise
        if chunk.finish:
            self._slots.release(chunk.stream)
        outputs: dict[str, Array] = {
            "AUDIO": samples,
            "SAMPLE_RATE": np.array([self._codec.sample_rate], dtype=np.int32),
            "CHUNK_INDEX": np.array([chunk.index], dtype=np.int32),
            "FINISH_REASON": text_array(chunk.finish),
        }
        if wants_pcm16:
            outputs["PCM16"] = to_pcm16(samples)
        return outputs

    def _samples(self, chunk: _Chunk, slot: int) -> Array:
        """Samples (N,) fp32 of a chunk; none for one that only tells the end."""
        count = len(chunk.patches)
        if not count:
            return np.zeros(0, dtype=np.float32)
        if not np.isfinite(chunk.patches).all():
            raise SpeechError("INTERNAL", "the talker made NaN or infinite latents; the stream was ended")
        samples = self._codec.decode(torch.tensor(chunk.patches).unsqueeze(0), [slot])[0].numpy()
        return samples[chunk.skipped * (len(samples) // count) :]

    def _slot(self, chunk: _Chunk) -> int:
        now = time.monotonic()
        lease = self._slots.find(chunk.stream)
        if lease is None:
            if chunk.index != 0:
                raise invalid("STREAM_ID", "is not known to the codec, or its stream was silent for too long")
            lease = self._slots.lease(chunk.stream, now)
            self._codec.reset(lease.slot)
        if chunk.index != lease.next_chunk:
            self._slots.release(chunk.stream)
            raise invalid("CHUNK_INDEX", f"is {chunk.index}, chunk {lease.next_chunk} was due")
        lease.next_chunk += 1
        lease.last_used = now
        return lease.slot
