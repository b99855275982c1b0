"""The talker stage: tokens and latents in, chunks of latent patches out."""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from ..engine.api import Frame
from ..engine.build import build_engine
from ..engine.runner import Engine, EngineThread
from ..engine.warm_up import warm_up
from ..errors import SpeechError, echoed, invalid
from ..families.registry import find_checkpoint, load_diffusion_family, load_family
from ..streaming.schedule import Chunker, ChunkSchedule
from . import catalogue
from .device import choose_device, use_device
from .diffusion_calls import DiffusionCalls
from .failure import finish_of
from .metrics import Metrics
from .pulses import Pulses
from .request_record import rounded, start_request_log, write_line
from .talker_inputs import chunk_schedule, read_request
from .talker_parameters import TalkerParameters
from .triton import (
    Array,
    checkpoints_folder,
    deadline_seconds,
    finish,
    for_caller,
    read_inputs,
    read_number,
    read_text,
    respond,
    start_stage,
    tell_error,
    text_array,
)

log = logging.getLogger(__name__)

CHUNK_OUTPUTS = ("STREAM_ID", "LATENTS", "SKIP_FRAMES", "CHUNK_INDEX", "FINISH_REASON")
WARM_UP_FRAMES = 2
SECONDS_BETWEEN_PULSES = 0.005
"""Of all streams together: two hundred a second, each of them two calls through Triton."""


@dataclass
class _Stream:
    request_id: str
    sender: Any
    requested: set[str]
    chunker: Chunker[torch.Tensor]
    priming: torch.Tensor | None
    """Patches that the codec is to hear before the first chunk, not to be played."""
    came: float = field(default_factory=time.monotonic)
    waited: float | None = None
    """Seconds until it had a slot."""
    first_chunk: float | None = None


class TalkerStage:
    """Binds a family's talker to Triton: decoupled, one response for each chunk.

    ``execute`` only queues. The engine's thread makes frames; a thread of its own sends them, for sending one by one
    from the engine's thread costs half the throughput.
    """

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        self._model = args["model_name"]
        self._family = load_family(self.family)
        parameters = TalkerParameters.from_triton(args["model_config"])
        folder = find_checkpoint(checkpoints_folder(args), parameters.checkpoint, self._family.ARCHITECTURE)
        device = choose_device(parameters, args)
        calls = None
        if parameters.diffusion == "stage":
            try:
                load_diffusion_family(self.family)
            except ValueError as error:
                raise ValueError(f"parameter diffusion is 'stage': {error}") from error
            calls = DiffusionCalls(self.family, parameters.diffusion_dtype)
        engine, self._talker = build_engine(
            parameters.engine_choice(device, calls), parameters.engine_options, self.family, folder
        )
        self._schedule = ChunkSchedule.parse(parameters.chunk_schedule)
        self._pulses = Pulses(parameters.pulse_ms / 1000, SECONDS_BETWEEN_PULSES, parameters.lost_seconds)
        self._streams: dict[str, _Stream] = {}
        self._streams_lock = threading.Lock()
        self._frames: queue.SimpleQueue[list[Frame] | Callable[[], None] | None] = queue.SimpleQueue()
        warm_up(engine, self._family, WARM_UP_FRAMES)
        if calls is not None:
            calls.open()
        engine.on_slot = self._has_slot
        self._engine = EngineThread(engine, self._frames.put, lambda: use_device(device))
        start_request_log()
        self._metrics = Metrics(catalogue.TALKER, args)
        self._follow(engine, parameters.max_num_seqs)
        self._responder = threading.Thread(target=self._send_frames, name="talker-responder", daemon=True)
        self._responder.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                inputs = read_inputs(request)
                if "CONTROL" in inputs:
                    self._control(inputs, sender)
                elif "PULSE" in inputs:
                    self._pass_on(request, sender, inputs)
                else:
                    self._start(request, sender, inputs)
            except Exception as error:
                self._metrics.count(catalogue.STAGE_REQUESTS, *catalogue.how_it_failed(error))
                finish(sender, tell_error(error, request.request_id(), request.requested_output_names()))

    def finalize(self) -> None:
        self._engine.close()
        self._frames.put(None)
        self._responder.join(10)
        self._metrics.close()

    def _follow(self, engine: Engine, slots: int) -> None:
        follow, thread = self._metrics.follow, self._engine
        follow(catalogue.SLOTS, read=lambda: slots)
        follow(catalogue.SLOTS_IN_USE, read=lambda: thread.running)
        follow(catalogue.QUEUE_DEPTH, read=lambda: thread.waiting)
        follow(catalogue.BATCHES, read=lambda: thread.counted.steps)
        follow(catalogue.BATCH_STREAMS, read=lambda: thread.counted.frames)
        follow(catalogue.BATCH_SIZE, read=lambda: thread.batch)
        for kind, use in engine.graph_uses.items():
            follow(catalogue.REPLAYS, kind, read=partial(getattr, use, "replays"))
            follow(catalogue.FALL_BACKS, kind, read=partial(getattr, use, "fallbacks"))

    def _has_slot(self, stream: str) -> None:
        entry = self._streams[stream]
        entry.waited = time.monotonic() - entry.came
        self._metrics.observe(catalogue.QUEUE_SECONDS, entry.waited)

    def _control(self, inputs: Mapping[str, Array], sender: Any) -> None:
        command = read_text(inputs, "CONTROL")
        if command == "cancel":
            self._engine.cancel(read_text(inputs, "STREAM_ID"))
            finish(sender)
        elif command == "ping":
            # Through both threads, the engine's and the sender's: each of them may hang while this one answers.
            self._engine.call(lambda: self._frames.put(partial(finish, sender)))
        else:
            raise invalid("CONTROL", f"{echoed(command)} is not allowed, only 'cancel' and 'ping' are")

    def _pass_on(self, request: Any, sender: Any, inputs: Mapping[str, Array]) -> None:
        """What this stage has sent comes by once more on its way through an ensemble, to see if its caller has gone."""
        stream = read_text(inputs, "STREAM_ID")
        self._pulses.came_back(stream)
        if request.is_cancelled():
            self._engine.cancel(stream)
        if read_number(inputs, "PULSE"):
            finish(sender)
        else:
            chunk = {name: inputs[name] for name in CHUNK_OUTPUTS}
            finish(sender, respond(chunk, request.requested_output_names()))

    def _start(self, request: Any, sender: Any, inputs: Mapping[str, Array]) -> None:
        stream = read_text(inputs, "STREAM_ID") if "STREAM_ID" in inputs else uuid.uuid4().hex
        talker_request = read_request(stream, inputs, self._family, self._talker, deadline_seconds(request))
        entry = _Stream(
            request.request_id() or stream,
            sender,
            set(request.requested_output_names()),
            Chunker(chunk_schedule(inputs, self._schedule)),
            self._family.priming_patches(talker_request.prompt),
        )
        with self._streams_lock:
            if stream in self._streams:
                raise invalid("STREAM_ID", "names a stream that is still running")
            self._streams[stream] = entry
        self._engine.submit(talker_request)
        if "PULSE" in entry.requested:
            if request.is_cancelled():
                self._engine.cancel(stream)
            self._pulses.begin(stream, time.monotonic())
            self._frames.put([])

    def _send_frames(self) -> None:
        while (frames := self._next_frames()) is not None:
            if callable(frames):
                frames()
                frames = []
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
                    self._pulses.end(frame.stream)
                    with self._streams_lock:
                        del self._streams[frame.stream]
            now = time.monotonic()
            for name in self._pulses.lost(now):
                self._engine.cancel(name)
            for name in self._pulses.due(now):
                self._send_pulse(name)

    def _next_frames(self) -> list[Frame] | Callable[[], None] | None:
        """The frames of a step; none when it is time for a pulse."""
        try:
            return self._frames.get(timeout=self._pulses.wait(time.monotonic()))
        except queue.Empty:
            return []

    def _send_pulse(self, name: str) -> None:
        self._pulses.sent(name, time.monotonic())
        stream = self._streams.get(name)
        if stream is None:
            return
        outputs = self._chunk_outputs(stream, Frame(name), -1, [])
        try:
            stream.sender.send(respond({**outputs, "PULSE": np.ones(1, dtype=np.int32)}, stream.requested))
        except Exception:
            log.exception("stream %s could not be sent to", stream.request_id)
            self._engine.cancel(name)

    def _send(self, stream: _Stream, frame: Frame) -> None:
        if frame.error is not None:
            self._ended(stream, *catalogue.how_it_failed(frame.error))
            finish(stream.sender, self._failure(stream, frame, frame.error))
            return
        patches = [] if frame.patch is None else [frame.patch]
        index = stream.chunker.chunks
        chunk = stream.chunker.push(patches, last=frame.is_last)
        if frame.finish == "cancelled":
            # Nobody hears what was not sent yet: the codec is to be free at once.
            chunk = []
        if not chunk and not frame.is_last:
            return
        if stream.sender.is_cancelled():
            self._engine.cancel(frame.stream)
        response = respond(self._chunk_outputs(stream, frame, index, chunk), stream.requested)
        if index == 0 and chunk:
            stream.first_chunk = time.monotonic() - stream.came
            self._metrics.observe(catalogue.FIRST_CHUNK, stream.first_chunk)
        if frame.is_last:
            self._ended(stream, *catalogue.how_it_finished(frame.finish))
            finish(stream.sender, response)
        else:
            stream.sender.send(response)
            self._pulses.sent(frame.stream, time.monotonic())

    def _failure(self, stream: _Stream, frame: Frame, error: SpeechError) -> Any:
        """The last response of a stream that failed."""
        if "PULSE" not in stream.requested or not stream.chunker.chunks:
            return tell_error(error, stream.request_id, stream.requested)
        # In an ensemble the codec, which has a place for it, hears only of what is sent as a chunk.
        outputs = self._chunk_outputs(stream, frame, stream.chunker.chunks, [])
        told = text_array(finish_of(for_caller(error, stream.request_id)))
        return respond({**outputs, "FINISH_REASON": told}, stream.requested)

    def _ended(self, stream: _Stream, outcome: str, reason: str) -> None:
        self._metrics.count(catalogue.STAGE_REQUESTS, outcome, reason)
        # A front door asks for it, and writes a line of its own, which knows more.
        if "QUEUE_SECONDS" in stream.requested:
            return
        times = {"queue": stream.waited, "first_chunk": stream.first_chunk, "total": time.monotonic() - stream.came}
        write_line(
            "stream",
            stream.request_id,
            model=self._model,
            outcome=outcome,
            reason=reason,
            chunks=stream.chunker.chunks,
            seconds=rounded({what: seconds for what, seconds in times.items() if seconds is not None}),
        )

    def _chunk_outputs(self, stream: _Stream, frame: Frame, index: int, chunk: list[torch.Tensor]) -> dict[str, Array]:
        priming = stream.priming if index == 0 and stream.priming is not None and chunk else None
        skipped = 0 if priming is None else len(priming)
        patches = [] if priming is None else list(priming)
        patches += chunk
        latents = torch.stack(patches) if patches else torch.zeros(0, *self._talker.patch_shape)
        outputs: dict[str, Array] = {
            "STREAM_ID": text_array(frame.stream),
            "LATENTS": latents.numpy(),
            "SKIP_FRAMES": np.array([skipped], dtype=np.int32),
            "CHUNK_INDEX": np.array([index], dtype=np.int32),
            "FINISH_REASON": text_array(frame.finish),
            "PULSE": np.zeros(1, dtype=np.int32),
        }
        if index == 0 and stream.waited is not None:
            outputs["QUEUE_SECONDS"] = np.array([stream.waited], dtype=np.float32)
        return outputs
