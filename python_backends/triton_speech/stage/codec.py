"""The codec stage: chunks of latent patches in, audio out, with each stream's decoder state kept between chunks."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from ..audio.pcm import to_pcm16
from ..errors import SpeechError, echoed, invalid
from ..families.protocol import SCRATCH_SLOT
from ..families.registry import find_checkpoint, load_family, optional_part
from ..streaming.batcher import PIECES
from ..streaming.slots import SlotTable
from . import catalogue
from .codec_parameters import CodecParameters
from .codec_worker import Chunk, CodecWorker, Release, Samples
from .device import choose_device, use_device
from .late import NOBODY
from .metrics import Metrics
from .triton import (
    Array,
    checkpoints_folder,
    finish,
    read_inputs,
    read_number,
    read_text,
    respond,
    respond_error,
    start_stage,
    text_array,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Reply:
    """Where a request's answer goes. ``chunk`` (its index) and ``finish`` are what it repeats."""

    sender: Any
    request_id: str
    requested: frozenset[str]
    chunk: int = 0
    finish: str = ""


class CodecStage:
    """Binds a family's codec to Triton. One response for each chunk, not decoupled.

    Triton hands over one request at a time, so ``execute`` only queues and returns: the next one can come. The
    worker's thread decodes what has gathered, and a thread of its own answers, while the worker decodes on.
    """

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        self._parameters = parameters = CodecParameters.from_triton(args["model_config"])
        folder = find_checkpoint(checkpoints_folder(args), parameters.checkpoint, family.ARCHITECTURE)
        device = choose_device(parameters, args)
        parameters.set_matmul_precision(device)
        window = parameters.window
        slots = parameters.max_streams + 1
        if parameters.runtime == "onnxruntime":
            load = optional_part(family, "load_onnx_codec", "parameter runtime is 'onnxruntime'")
            graphs = folder / parameters.onnx_graphs
            self._codec = load(folder, graphs, slots=slots, device=device, tf32=parameters.matmul == "tf32")
        else:
            batches = {"max_batch": window.max_batch, "pieces": PIECES, "graphs": parameters.graphs}
            self._codec = family.load_codec(folder, slots=slots, device=device, **batches)
        # The first decode pays for torch's start; no caller should.
        self._codec.launch(torch.zeros(1, 1, *self._codec.patch_shape), [SCRATCH_SLOT]).result()
        table = SlotTable(parameters.max_streams, parameters.idle_seconds, first=SCRATCH_SLOT + 1)
        self._answers: queue.SimpleQueue[tuple[_Reply, Samples | SpeechError | None] | None] = queue.SimpleQueue()
        self._worker = CodecWorker(
            self._codec,
            table,
            window,
            batches_in_flight=parameters.batches_in_flight,
            max_silence=round(parameters.max_trailing_silence * self._codec.sample_rate),
            prepare=lambda: use_device(device),
        )
        self._metrics = Metrics(catalogue.CODEC, args)
        self._follow()
        self._responder = threading.Thread(target=self._send_answers, name="codec-responder", daemon=True)
        self._responder.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            reply = _Reply(
                request.get_response_sender(), request.request_id(), frozenset(request.requested_output_names())
            )
            try:
                inputs = read_inputs(request)
                self._worker.submit(self._control(inputs, reply) if "CONTROL" in inputs else self._read(inputs, reply))
            except Exception as error:
                self._metrics.count(catalogue.STAGE_REQUESTS, *catalogue.how_it_failed(error))
                finish(reply.sender, respond_error(error, reply.request_id))

    def finalize(self) -> None:
        self._worker.close()
        self._answers.put(None)
        self._responder.join(10)
        self._metrics.close()

    def _follow(self) -> None:
        follow, worker, graphs = self._metrics.follow, self._worker, self._codec.graph_use
        follow(catalogue.SLOTS, read=lambda: self._parameters.max_streams)
        follow(catalogue.SLOTS_IN_USE, read=lambda: worker.streams)
        follow(catalogue.QUEUE_DEPTH, read=lambda: worker.waiting)
        follow(catalogue.BATCHES, read=lambda: worker.counted.batches)
        follow(catalogue.BATCH_STREAMS, read=lambda: worker.counted.streams)
        follow(catalogue.BATCH_SIZE, read=lambda: worker.batch)
        follow(catalogue.REPLAYS, "codec", read=lambda: graphs.replays)
        follow(catalogue.FALL_BACKS, "codec", read=lambda: graphs.fallbacks)

    def _control(self, inputs: Mapping[str, Array], reply: _Reply) -> Release:
        command = read_text(inputs, "CONTROL")
        if command not in ("release", "ping"):
            raise invalid("CONTROL", f"{echoed(command)} is not allowed, only 'release' and 'ping' are")
        # A ping releases nobody, on the way that a release takes: through the worker's and the responder's threads.
        stream = read_text(inputs, "STREAM_ID") if command == "release" else NOBODY
        return Release(stream, partial(self._answer, reply, None))

    def _read(self, inputs: Mapping[str, Array], reply: _Reply) -> Chunk:
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
        reply = replace(reply, chunk=int(read_number(inputs, "CHUNK_INDEX")), finish=read_text(inputs, "FINISH_REASON"))
        return Chunk(
            stream=read_text(inputs, "STREAM_ID"),
            index=reply.chunk,
            patches=torch.tensor(patches),
            skipped=skipped,
            finish=reply.finish,
            answer=partial(self._answer, reply),
        )

    def _answer(self, reply: _Reply, result: Samples | SpeechError | None) -> None:
        self._answers.put((reply, result))

    def _send_answers(self) -> None:
        while (answer := self._answers.get()) is not None:
            reply, result = answer
            try:
                response = self._response(reply, result)
            except Exception as error:
                response = respond_error(error, reply.request_id)
            try:
                finish(reply.sender, response)
            except Exception:
                log.exception("request %s could not be answered", reply.request_id)

    def _response(self, reply: _Reply, result: Samples | SpeechError | None) -> Any:
        if isinstance(result, SpeechError):
            self._metrics.count(catalogue.STAGE_REQUESTS, *catalogue.how_it_failed(result))
            return respond_error(result, reply.request_id)
        if result is None:
            return respond({}, ())
        self._metrics.count(catalogue.STAGE_REQUESTS, *catalogue.ANSWERED)
        self._metrics.count(catalogue.AUDIO_SECONDS, by=len(result) / self._codec.sample_rate)
        outputs: dict[str, Array] = {
            "AUDIO": result,
            "SAMPLE_RATE": np.array([self._codec.sample_rate], dtype=np.int32),
            "CHUNK_INDEX": np.array([reply.chunk], dtype=np.int32),
            "FINISH_REASON": text_array(reply.finish),
        }
        if "PCM16" in reply.requested:
            outputs["PCM16"] = to_pcm16(result)
        return respond(outputs, reply.requested)
