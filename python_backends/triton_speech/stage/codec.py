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
from .triton import Array, checkpoints_folder, read_inputs, read_text, respond, respond_error, start_stage, text_array


class CodecParameters(DeviceParameters):
    max_streams: int = Field(default=64, ge=1)
    idle_seconds: float = Field(default=60.0, gt=0)
    """A stream silent for longer may lose its slot to a new one."""
    max_chunk_frames: int = Field(default=128, ge=1)


@dataclass
class _Chunk:
    """One request of a batch on its way through the stage."""

    request: Any
    stream: str
    index: int
    patches: Array
    skipped: int
    finish: str
    samples: Array | None = None


class CodecStage:
    """Binds a family's codec to Triton. One response for each chunk, not decoupled; batched across streams."""

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        self._parameters = CodecParameters.from_triton(args["model_config"])
        folder = find_checkpoint(checkpoints_folder(args), self._parameters.checkpoint, family.ARCHITECTURE)
        capacity = self._parameters.max_streams
        self._codec = family.load_codec(
            folder, slots=capacity + 1, device=choose_device(self._parameters, args)
        )
        self._slots = SlotTable(capacity, self._parameters.idle_seconds, first=1)
        self._codec.decode(torch.zeros(1, 1, *self._codec.patch_shape), [0])

    def execute(self, requests: list[Any]) -> list[Any]:
        responses: list[Any] = [None] * len(requests)
        batch: dict[int, _Chunk] = {}
        for place, request in enumerate(requests):
            try:
                inputs = read_inputs(request)
                if "CONTROL" in inputs:
                    self._slots.release(read_text(inputs, "STREAM_ID"))
                    responses[place] = respond({}, ())
                    continue
                chunk = self._read(request, inputs)
                if any(other.stream == chunk.stream for other in batch.values()):
                    self._run(batch, responses)
                batch[place] = chunk
            except Exception as error:
                responses[place] = respond_error(error, request.request_id())
        self._run(batch, responses)
        return responses

    def _read(self, request: Any, inputs: Mapping[str, Array]) -> _Chunk:
        patches = inputs.get("LATENTS")
        if patches is None or patches.shape[1:] != self._codec.patch_shape:
            patch, dims = self._codec.patch_shape
            raise invalid("LATENTS", f"must have shape [n, {patch}, {dims}]")
        if len(patches) > self._parameters.max_chunk_frames:
            raise invalid(
                "LATENTS", f"holds {len(patches)} frames, at most {self._parameters.max_chunk_frames} are allowed"
            )
        if not np.isfinite(patches).all():
            raise SpeechError("INTERNAL", "the talker made NaN or infinite latents; the stream was ended")
        skipped = int(inputs["SKIP_FRAMES"][0]) if "SKIP_FRAMES" in inputs else 0
        if not 0 <= skipped <= len(patches):
            raise invalid("SKIP_FRAMES", f"is {skipped}, must be 0 to {len(patches)}")
        return _Chunk(
            request,
            read_text(inputs, "STREAM_ID"),
            int(inputs["CHUNK_INDEX"][0]),
            patches,
            skipped,
            read_text(inputs, "FINISH_REASON"),
        )

    def _run(self, batch: dict[int, _Chunk], responses: list[Any]) -> None:
        """Answers and empties ``batch``, whose streams are distinct."""
        by_size: dict[int, list[int]] = {}
        for place, chunk in batch.items():
            by_size.setdefault(len(chunk.patches), []).append(place)
        for places in by_size.values():
            chunks = [batch[place] for place in places]
            for place, response in zip(places, self._decode(chunks), strict=True):
                responses[place] = response
        batch.clear()

    def _decode(self, chunks: list[_Chunk]) -> list[Any]:
        """Responses for chunks of distinct streams with the same number of frames."""
        outcomes: list[Any] = []
        ready: list[tuple[_Chunk, int]] = []
        for chunk in chunks:
            try:
                ready.append((chunk, self._slot(chunk)))
                outcomes.append(chunk)
            except SpeechError as error:
                outcomes.append(respond_error(error, chunk.request.request_id()))
        try:
            if ready and len(ready[0][0].patches):
                patches = torch.from_numpy(np.stack([chunk.patches for chunk, _ in ready]))
                for (chunk, _), samples in zip(
                    ready, self._codec.decode(patches, [slot for _, slot in ready]), strict=True
                ):
                    per_frame = len(samples) // len(chunk.patches)
                    chunk.samples = samples[chunk.skipped * per_frame :].numpy()
        except Exception as error:
            for chunk, _ in ready:
                self._slots.release(chunk.stream)
            failed = {id(chunk): respond_error(error, chunk.request.request_id()) for chunk, _ in ready}
            return [failed.get(id(outcome), outcome) for outcome in outcomes]
        return [self._answer(outcome) if isinstance(outcome, _Chunk) else outcome for outcome in outcomes]

    def _slot(self, chunk: _Chunk) -> int:
        now = time.monotonic()
        lease = self._slots.find(chunk.stream)
        if lease is None:
            if chunk.index != 0:
                raise SpeechError("INTERNAL", "the codec no longer knows this stream; it was silent for too long")
            lease = self._slots.lease(chunk.stream, now)
            self._codec.reset(lease.slot)
        if chunk.index != lease.next_chunk:
            self._slots.release(chunk.stream)
            raise SpeechError("INTERNAL", f"chunk {chunk.index} came, chunk {lease.next_chunk} was due")
        lease.next_chunk += 1
        lease.last_used = now
        return lease.slot

    def _answer(self, chunk: _Chunk) -> Any:
        if chunk.finish:
            self._slots.release(chunk.stream)
        samples = np.zeros(0, dtype=np.float32) if chunk.samples is None else chunk.samples
        requested = chunk.request.requested_output_names()
        outputs: dict[str, Array] = {
            "SAMPLE_RATE": np.array([self._codec.sample_rate], dtype=np.int32),
            "CHUNK_INDEX": np.array([chunk.index], dtype=np.int32),
            "FINISH_REASON": text_array(chunk.finish),
        }
        if "AUDIO" in requested:
            outputs["AUDIO"] = samples
        if "PCM16" in requested:
            outputs["PCM16"] = to_pcm16(samples)
        return respond(outputs, requested)
