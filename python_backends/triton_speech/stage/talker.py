"""The talker stage: tokens and latents in, chunks of latent patches out."""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator

from ..engine.api import EngineOptions, Frame, TalkerRequest
from ..engine.build import EngineChoice, build_engine
from ..engine.runner import Engine, EngineThread
from ..errors import echoed, invalid
from ..families.registry import find_checkpoint, load_family
from ..parameters import DeviceParameters
from ..request import read_schedule
from ..streaming.schedule import Chunker, ChunkSchedule
from .device import choose_device, use_device
from .triton import (
    Array,
    checkpoints_folder,
    finish,
    read_inputs,
    read_number,
    read_text,
    respond,
    start_stage,
    tell_error,
    text_array,
)

log = logging.getLogger(__name__)


class TalkerParameters(DeviceParameters):
    engine: Literal["torch", "vllm"] = "torch"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """``auto`` takes the checkpoint's on a GPU and float32 on the CPU."""
    max_length: int = Field(default=0, ge=0)
    """Positions that a stream may have, prompt and speech; 0 takes the checkpoint's."""
    max_num_seqs: int = Field(default=8, ge=1)
    max_waiting: int = Field(default=64, ge=0)
    prefill_chunk: int = Field(default=128, ge=1)
    prefill_budget: int = Field(default=256, ge=1)
    deterministic: bool = False
    max_inference_steps: int = Field(default=10, ge=2, le=100)
    """vLLM only: its graphs run this many diffusion steps; a request may ask for fewer, not for more."""
    kv_cache_gib: float = Field(default=0.0, ge=0)
    """vLLM only: memory for keys and values; 0 takes what is left of the GPU."""
    chunk_schedule: str = "1,2,4"

    @field_validator("chunk_schedule")
    @classmethod
    def _readable(cls, text: str) -> str:
        ChunkSchedule.parse(text)
        return text

    def engine_choice(self, device: str) -> EngineChoice:
        return EngineChoice(
            kind=self.engine,
            device=device,
            dtype=None if self.dtype == "auto" else self.dtype,
            length=self.max_length or None,
            most=self.max_inference_steps,
            kv_cache_bytes=int(self.kv_cache_gib * 2**30),
        )

    @property
    def engine_options(self) -> EngineOptions:
        return EngineOptions(**{name: getattr(self, name) for name in EngineOptions.__dataclass_fields__})


@dataclass
class _Stream:
    request_id: str
    sender: Any
    requested: set[str]
    chunker: Chunker[torch.Tensor]
    priming: torch.Tensor | None
    """Patches that the codec is to hear before the first chunk, not to be played."""


class TalkerStage:
    """Binds a family's talker to Triton: decoupled, one response for each chunk.

    ``execute`` only queues. The engine's thread makes frames; a thread of its own sends them, for sending one by one
    from the engine's thread costs half the throughput.
    """

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        self._family = load_family(self.family)
        parameters = TalkerParameters.from_triton(args["model_config"])
        folder = find_checkpoint(checkpoints_folder(args), parameters.checkpoint, self._family.ARCHITECTURE)
        device = choose_device(parameters, args)
        engine, self._talker = build_engine(
            parameters.engine_choice(device), parameters.engine_options, self.family, folder
        )
        self._schedule = ChunkSchedule.parse(parameters.chunk_schedule)
        self._streams: dict[str, _Stream] = {}
        self._streams_lock = threading.Lock()
        self._frames: queue.SimpleQueue[list[Frame] | None] = queue.SimpleQueue()
        self._warm(engine)
        self._engine = EngineThread(engine, self._frames.put, lambda: use_device(device))
        self._responder = threading.Thread(target=self._send_frames, name="talker-responder", daemon=True)
        self._responder.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                inputs = read_inputs(request)
                if "CONTROL" in inputs:
                    self._control(inputs)
                    finish(sender)
                else:
                    self._start(request, sender, inputs)
            except Exception as error:
                finish(sender, tell_error(error, request.request_id(), request.requested_output_names()))

    def finalize(self) -> None:
        self._engine.close()
        self._frames.put(None)
        self._responder.join(10)

    def _warm(self, engine: Engine) -> None:
        """One short stream, so that the first caller does not pay for torch's start."""
        sampling = self._family.make_sampling(0, {})
        engine.add(TalkerRequest("warm-up", self._family.make_prompt([1] * 16, None, None), sampling, max_frames=2))
        while not engine.is_idle:
            engine.step()

    def _control(self, inputs: Mapping[str, Array]) -> None:
        command = read_text(inputs, "CONTROL")
        if command != "cancel":
            raise invalid("CONTROL", f"{echoed(command)} is not allowed, only 'cancel' is")
        self._engine.cancel(read_text(inputs, "STREAM_ID"))

    def _start(self, request: Any, sender: Any, inputs: Mapping[str, Array]) -> None:
        stream = read_text(inputs, "STREAM_ID") if "STREAM_ID" in inputs else uuid.uuid4().hex
        prompt = self._family.make_prompt(
            self._tokens(inputs), self._latents(inputs, "REFERENCE_LATENTS"), self._latents(inputs, "PROMPT_LATENTS")
        )
        sampling = {name: read_number(inputs, name) for name in self._family.SAMPLING_INPUTS}
        seed = int(read_number(inputs, "SEED"))
        max_frames = int(read_number(inputs, "MAX_FRAMES"))
        if max_frames < 1:
            raise invalid("MAX_FRAMES", f"is {max_frames}, must be at least 1")
        talker_request = TalkerRequest(stream, prompt, self._family.make_sampling(seed, sampling), max_frames)
        entry = _Stream(
            request.request_id() or stream,
            sender,
            set(request.requested_output_names()),
            Chunker(self._chunk_schedule(inputs)),
            self._family.priming_patches(prompt),
        )
        with self._streams_lock:
            if stream in self._streams:
                raise invalid("STREAM_ID", "names a stream that is still running")
            self._streams[stream] = entry
        self._engine.submit(talker_request)

    def _chunk_schedule(self, inputs: Mapping[str, Array]) -> ChunkSchedule:
        """The request's own, or the stage's where that is absent or empty."""
        if "CHUNK_SCHEDULE" not in inputs or inputs["CHUNK_SCHEDULE"].size == 0:
            return self._schedule
        return read_schedule("CHUNK_SCHEDULE", inputs) or self._schedule

    def _tokens(self, inputs: Mapping[str, Array]) -> list[int]:
        tokens = inputs.get("TOKENS")
        if tokens is None or tokens.size == 0:
            raise invalid("TOKENS", "is missing or empty")
        vocabulary = self._talker.vocabulary
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            raise invalid("TOKENS", f"holds ids outside 0 to {vocabulary - 1}")
        return [int(token) for token in tokens]

    def _latents(self, inputs: Mapping[str, Array], name: str) -> torch.Tensor | None:
        array = inputs.get(name)
        if array is None or array.shape[0] == 0:
            return None
        if array.shape[1:] != self._talker.patch_shape:
            patch, dims = self._talker.patch_shape
            raise invalid(name, f"has shape {list(array.shape)}, must be [n, {patch}, {dims}]")
        if not np.isfinite(array).all():
            raise invalid(name, "holds NaN or infinite values")
        return torch.from_numpy(np.array(array, dtype=np.float32))

    def _send_frames(self) -> None:
        while (frames := self._frames.get()) is not None:
            for frame in frames:
                stream = self._streams.get(frame.stream)
                if stream is None:
                    continue
                try:
                    self._send(stream, frame)
                except Exception:
                    log.exception("stream %s could not be sent to", stream.request_id)
                    self._engine.cancel(frame.stream)
                if frame.is_last:
                    with self._streams_lock:
                        del self._streams[frame.stream]

    def _send(self, stream: _Stream, frame: Frame) -> None:
        if frame.error is not None:
            finish(stream.sender, tell_error(frame.error, stream.request_id, stream.requested))
            return
        patches = [] if frame.patch is None else [frame.patch]
        index = stream.chunker.chunks
        chunk = stream.chunker.push(patches, last=frame.is_last)
        if not chunk and not frame.is_last:
            return
        if stream.sender.is_cancelled():
            self._engine.cancel(frame.stream)
        response = respond(self._chunk_outputs(stream, frame, index, chunk), stream.requested)
        if frame.is_last:
            finish(stream.sender, response)
        else:
            stream.sender.send(response)

    def _chunk_outputs(self, stream: _Stream, frame: Frame, index: int, chunk: list[torch.Tensor]) -> dict[str, Array]:
        priming = stream.priming if index == 0 and stream.priming is not None and chunk else None
        skipped = 0 if priming is None else len(priming)
        patches = [] if priming is None else list(priming)
        patches += chunk
        latents = torch.stack(patches) if patches else torch.zeros(0, *self._talker.patch_shape)
        return {
            "STREAM_ID": text_array(frame.stream),
            "LATENTS": latents.numpy(),
            "SKIP_FRAMES": np.array([skipped], dtype=np.int32),
            "CHUNK_INDEX": np.array([index], dtype=np.int32),
            "FINISH_REASON": text_array(frame.finish),
        }
