"""Drives the slot-token model through vLLM's own engine, in this process."""

from __future__ import annotations

import json
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from ...errors import full, invalid
from ...families.protocol import TalkerModel
from ...families.registry import load_family
from ..api import EngineOptions, FinishReason, Frame, TalkerRequest
from ..build import EngineChoice
from ..torch_engine import NOT_FINITE, SCRATCH_SLOT, slots_needed
from .plugin import ARCHITECTURE, register

GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32)


@dataclass
class _Running:
    request: TalkerRequest
    slot: int
    frames: int = 0


class VllmEngine:
    """The same engine as ``TorchEngine`` to its callers. Single-threaded."""

    def __init__(
        self, choice: EngineChoice, options: EngineOptions, family: str, checkpoint: Path, dtype: str | None
    ) -> None:
        if options.deterministic:
            raise ValueError("parameter deterministic is true, which the engine 'vllm' cannot keep; take 'torch'")
        self.options = options
        self._choice = choice
        facts = load_family(family).talker_facts(checkpoint)
        self._shape = facts.kv_shape
        self._length = choice.length or facts.length
        self._slots = slots_needed(options)
        register()
        with tempfile.TemporaryDirectory(prefix="triton-speech-vllm-") as folder:
            config = self._config(family, checkpoint, dtype or facts.dtype)
            (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
            args = EngineArgs(model=folder, dtype=dtype or facts.dtype, **self._engine_args())
            self._engine = LLMEngine.from_engine_args(args)
        models: list[Any] = []
        self._engine.apply_model(models.append)
        self.talker: TalkerModel = models[0].talker
        if choice.device != "cpu" and choice.graphs:
            with torch.inference_mode():
                models[0].capture_tails(self._graph_sizes())
        self._free = list(range(self._slots - 1, SCRATCH_SLOT, -1))
        self._waiting: deque[TalkerRequest] = deque()
        self._running: dict[str, _Running] = {}
        self._cancelled: set[str] = set()

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._running)

    def add(self, request: TalkerRequest) -> None:
        """Queues a stream.

        Raises:
            SpeechError: UNAVAILABLE when the queue is full, INVALID_ARG when this engine cannot run it.
        """
        most = self._choice.most
        if request.sampling.batch_key > most:
            raise invalid("INFERENCE_STEPS", f"is {request.sampling.batch_key}, this engine runs at most {most}")
        if request.prompt.length >= self._length:
            raise invalid(
                "TEXT",
                f"text and audio prompts take {request.prompt.length} positions, this talker has {self._length}",
            )
        if len(self._waiting) >= self.options.max_waiting + len(self._free):
            raise full("the talker's queue", self.options.max_waiting)
        self._waiting.append(request)

    def cancel(self, stream: str) -> None:
        """Ends a stream at the next step; its slot is free then. Unknown streams are ignored."""
        self._cancelled.add(stream)

    @torch.inference_mode()
    def step(self) -> list[Frame]:
        """Admits, then one step of vLLM; the patches of all streams come to the host in one copy."""
        frames = self._drop_cancelled()
        while self._waiting and self._free:
            self._admit(self._waiting.popleft())
        if not self._running:
            return frames
        made: list[tuple[_Running, int, FinishReason]] = []
        for output in self._engine.step():
            one = self._running.get(output.request_id)
            if one is None:
                continue
            completion = output.outputs[0]
            finish: FinishReason = completion.finish_reason if output.finished else ""
            for frame in range(one.frames, len(completion.token_ids)):
                is_last = frame == len(completion.token_ids) - 1
                made.append((one, frame, finish if is_last else ""))
            one.frames = len(completion.token_ids)
            if finish:
                self._release(one)
        return frames + self._read(made)

    def _config(self, family: str, checkpoint: Path, dtype: str) -> dict[str, Any]:
        """A configuration in Hugging Face's form: what vLLM wants to know, and what ``SlotTokenModel`` reads."""
        shape = self._shape
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "hidden_size": shape.heads * shape.head_dim,
            "intermediate_size": shape.heads * shape.head_dim,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "vocab_size": self._slots + 1,
            "max_position_embeddings": self._length,
            "torch_dtype": dtype,
            "bos_token_id": None,
            "eos_token_id": self._slots,
            "talker_family": family,
            "talker_checkpoint": str(checkpoint),
            "talker_slots": self._slots,
            "talker_batch_key": self._choice.most,
        }

    def _engine_args(self) -> dict[str, Any]:
        choice, options = self._choice, self.options
        args: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "max_model_len": self._length,
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": max(options.prefill_budget, options.max_num_seqs),
            "enable_prefix_caching": False,
            "generation_config": "vllm",
        }
        if choice.kv_cache_bytes:
            args["kv_cache_memory_bytes"] = choice.kv_cache_bytes
        if choice.device == "cpu":
            # On the CPU "gpu_memory_utilization" is a share of the machine's memory.
            return {**args, "enforce_eager": True, "block_size": 32, "gpu_memory_utilization": 0.1}
        if not choice.graphs:
            return {**args, "enforce_eager": True}
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": self._graph_sizes()}
        return {**args, "compilation_config": graphs, "async_scheduling": True}

    def _graph_sizes(self) -> list[int]:
        most = self.options.max_num_seqs
        return [size for size in GRAPH_SIZES if size <= most] + list(range(40, most + 1, 8))

    def _admit(self, request: TalkerRequest) -> None:
        one = _Running(request, self._free.pop())
        self._running[request.stream] = one
        self.talker.write_prompt(one.slot, request.prompt, request.sampling)
        frames = min(request.max_frames, self._length - request.prompt.length)
        sampling = SamplingParams(
            temperature=0, max_tokens=frames, detokenize=False, stop_token_ids=[self._slots], ignore_eos=True
        )
        prompt = {"prompt_token_ids": [one.slot] * request.prompt.length}
        self._engine.add_request(request.stream, prompt, sampling)

    def _drop_cancelled(self) -> list[Frame]:
        if not self._cancelled:
            return []
        cancelled, self._cancelled = self._cancelled, set()
        ended = [request.stream for request in self._waiting if request.stream in cancelled]
        self._waiting = deque(request for request in self._waiting if request.stream not in cancelled)
        running = [stream for stream in cancelled if stream in self._running]
        self._stop(running)
        return [Frame(stream, finish="cancelled") for stream in [*ended, *running]]

    def _read(self, made: list[tuple[_Running, int, FinishReason]]) -> list[Frame]:
        """The patches of these frames, gathered on the device and copied once."""
        if not made:
            return []
        where = [(one.slot, one.request.prompt.length + frame) for one, frame, _ in made]
        frames = []
        for (one, _, finish), patch in zip(made, self.talker.read_patches(where), strict=True):
            stream = one.request.stream
            if patch.isfinite().all():
                frames.append(Frame(stream, patch.clone(), finish))
            elif stream in self._running or finish:
                frames.append(Frame(stream, error=NOT_FINITE))
                self._stop([stream])
        return frames

    def _stop(self, streams: list[str]) -> None:
        """Takes streams out of vLLM; those that it has already ended are ignored."""
        if running := [stream for stream in streams if stream in self._running]:
            self._engine.abort_request(running)
        for stream in running:
            self._release(self._running[stream])

    def _release(self, one: _Running) -> None:
        del self._running[one.request.stream]
        self._free.append(one.slot)
