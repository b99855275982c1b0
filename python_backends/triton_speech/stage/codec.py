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
from ..families.registry import find_checkpoint, load_family
from ..streaming.batcher import PIECES
from ..streaming.slots import SlotTable
from .codec_parameters import CodecParameters
from .codec_worker import Chunk, CodecWorker, Release, Samples
from .device import choose_device, use_device
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
        self._codec = family.load_codec(
            folder,
            slots=parameters.max_streams + 1,
            device=device,
            max_batch=window.max_batch,
            pieces=PIECES,
            graphs=parameters.graphs,
        )
        # The first decode pays for torch's start; no caller should.
        self._codec.launch(torch.zeros(1, 1, *self._codec.patch_shape), [SCRATCH_SLOT]).result()
        slots = SlotTable(parameters.max_streams, parameters.idle_seconds, first=SCRATCH_SLOT + 1)
        self._answers: queue.SimpleQueue[tuple[_Reply, Samples | SpeechError | None] | None] = queue.SimpleQueue()
        self._worker = CodecWorker(
            self._codec,
            slots,
            window,
            batches_in_flight=parameters.batches_in_flight,
            prepare=lambda: use_device(device),
        )
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
                finish(reply.sender, respond_error(error, reply.request_id))

    def finalize(self) -> None:
        self._worker.close()
        self._answers.put(None)
        self._responder.join(10)

    def _control(self, inputs: Mapping[str, Array], reply: _Reply) -> Release:
        command = read_text(inputs, "CONTROL")
        if command != "release":
            raise invalid("CONTROL", f"{echoed(command)} is not allowed, only 'release' is")
        return Release(read_text(inputs, "STREAM_ID"), partial(self._answer, reply, None))

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
            return respond_error(result, reply.request_id)
        if result is None:
            return respond({}, ())
        outputs: dict[str, Array] = {
            "AUDIO": result,
            "SAMPLE_RATE": np.array([self._codec.sample_rate], dtype=np.int32),
            "CHUNK_INDEX": np.array([reply.chunk], dtype=np.int32),
            "FINISH_REASON": text_array(reply.finish),
        }
        if "PCM16" in reply.requested:
            outputs["PCM16"] = to_pcm16(result)
        return respond(outputs, reply.requested)
