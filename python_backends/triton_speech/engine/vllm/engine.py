"""Drives the slot-token model through vLLM's own engine, in this process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from ...errors import invalid
from ...families.protocol import TalkerModel
from ...families.registry import load_family
from ..api import EngineOptions, FinishReason, Frame, TalkerRequest
from ..build import EngineChoice
from ..slots import NOT_FINITE, NOTHING_SAID, Running, SlotEngine, slots_needed
from ..warm_up import warm_up
from .plugin import ARCHITECTURE, register

CPU_BLOCK = 32
"""Positions in a block of the cache: vLLM's attention on the CPU takes multiples of 32."""
_Step = tuple[Running, int, FinishReason]
"""A stream, which of its steps, and how it ended with it."""
MOST_OF_FREE = 0.5
"""Of the memory that is free at the start, for a cache whose size is not set: the rest is for weights and graphs."""
ROUNDED = 64
"""Positions that a stream may have besides its own, for the cache is given in blocks."""
UNASKED = 0.01
"""Of the device, by which vLLM would otherwise size its cache; nine tenths would have to be free at the start."""
GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32)


class VllmEngine(SlotEngine):
    """The same engine as ``TorchEngine`` to its callers. Single-threaded."""

    def __init__(
        self, choice: EngineChoice, options: EngineOptions, family: str, checkpoint: Path, dtype: str | None
    ) -> None:
        facts = load_family(family).talker_facts(checkpoint)
        super().__init__(options, choice.length or facts.length)
        self._choice = choice
        self._shape = facts.kv_shape
        self._slots = slots_needed(options)
        register()
        with tempfile.TemporaryDirectory(prefix="triton-speech-vllm-") as folder:
            dtype = dtype or facts.dtype
            config = self._config(family, checkpoint, dtype)
            (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
            args = EngineArgs(model=folder, dtype=dtype, **self._engine_args(dtype))
            vllm_config = args.create_engine_config()
            if choice.device != "cpu":
                # vLLM has no argument for it, but takes its rank on this host from here.
                vllm_config.device_config.device = torch.device(choice.device)
            self._engine = LLMEngine.from_vllm_config(vllm_config, disable_log_stats=True)
        models: list[Any] = []
        self._engine.apply_model(models.append)
        self._model = models[0]
        self.talker: TalkerModel = models[0].talker
        if choice.device != "cpu" and choice.graphs:
            with torch.inference_mode():
                models[0].capture(self._graph_sizes())
            self.graph_uses = models[0].graph_uses
            # In its first step the model captures what it needs a prompt for.
            warm_up(self, load_family(family), frames=1)

    def add(self, request: TalkerRequest) -> None:
        """Queues a stream.

        Raises:
            SpeechError: UNAVAILABLE when the queue is full, INVALID_ARG when this engine cannot run it.
        """
        most = self._choice.most
        if request.sampling.batch_key > most:
            raise invalid("INFERENCE_STEPS", f"is {request.sampling.batch_key}, this engine runs at most {most}")
        super().add(request)

    @torch.inference_mode()
    def step(self) -> list[Frame]:
        """Admits, then one step of vLLM; the patches of all streams come to the host in one copy."""
        frames = self._drop_ended() + self._admit()
        if not self._running:
            return frames
        made: list[_Step] = []
        forwards = self._model.forwards
        outputs = self._engine.step()
        if outputs and forwards == self._model.forwards and "decode" in self.graph_uses:
            # vLLM replays its own graphs without a word. It may hand out what the step before has made; a stream's
            # first such step has then nothing to hand out, and its last hand-out no step, so the sum is right.
            self.graph_uses["decode"].replays += 1
        for output in outputs:
            one = self._running.get(output.request_id)
            if one is None:
                continue
            completion = output.outputs[0]
            finish: FinishReason = completion.finish_reason if output.finished else ""
            steps = len(completion.token_ids)
            made += [(one, step, finish if step == steps - 1 else "") for step in range(one.done, steps)]
            one.done = steps
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
            "max_position_embeddings": self.length,
            "torch_dtype": dtype,
            "bos_token_id": None,
            "eos_token_id": self._slots,
            "talker_family": family,
            "talker_checkpoint": str(checkpoint),
            "talker_slots": self._slots,
            "talker_batch_key": self._choice.most,
            "talker_options": dict(self._choice.talker_options),
            "talker_deterministic": self.options.deterministic,
        }

    def _cache_bytes(self, dtype: str) -> int:
        """What all streams of the greatest length need, so that other stages find their place on the device."""
        if self._choice.kv_cache_bytes:
            return self._choice.kv_cache_bytes
        positions = self.options.max_num_seqs * (self.length + ROUNDED)
        needed = positions * self._shape.bytes_per_position(getattr(torch, dtype).itemsize)
        free, _ = torch.cuda.mem_get_info(self._choice.device)
        return min(needed, int(MOST_OF_FREE * free))

    def _engine_args(self, dtype: str) -> dict[str, Any]:
        choice, options = self._choice, self.options
        args: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "max_model_len": self.length,
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": max(options.prefill_budget, options.max_num_seqs),
            "enable_prefix_caching": False,
            "generation_config": "vllm",
        }
        if choice.device == "cpu":
            # On the CPU "gpu_memory_utilization" is a share of the machine's memory.
            args |= {"enforce_eager": True, "block_size": CPU_BLOCK, "gpu_memory_utilization": 0.1}
            if choice.kv_cache_bytes:
                block = CPU_BLOCK * self._shape.bytes_per_position(4)
                args["num_gpu_blocks_override"] = max(choice.kv_cache_bytes // block, 1)
            return args
        args |= {"kv_cache_memory_bytes": self._cache_bytes(dtype), "gpu_memory_utilization": UNASKED}
        if not choice.graphs or options.deterministic:
            # Graphs of steps of one shape are the model's own.
            return {**args, "enforce_eager": True}
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": self._graph_sizes()}
        return {**args, "compilation_config": graphs, "async_scheduling": True}

    def _graph_sizes(self) -> list[int]:
        most = self.options.max_num_seqs
        if self.options.deterministic:
            return [most]
        return [*(size for size in (*GRAPH_SIZES, *range(40, most, 8)) if size < most), most]

    def _begin(self, streams: list[Running]) -> list[Frame]:
        self._model.progress.begin([(one.slot, one.request.prompt.length) for one in streams])
        return super()._begin(streams)

    def _start(self, one: Running) -> None:
        request = one.request
        room = self.length - request.prompt.length
        sampling = SamplingParams(
            temperature=0,
            # vLLM counts steps, which may be more than the frames that come of them.
            max_tokens=room if self.talker.marks_frames else min(request.max_frames, room),
            detokenize=False,
            stop_token_ids=[self._slots],
            ignore_eos=True,
        )
        prompt = {"prompt_token_ids": [one.slot] * request.prompt.length}
        self._engine.add_request(request.stream, prompt, sampling)

    def _read(self, made: list[_Step]) -> list[Frame]:
        """What these steps have made, gathered on the device and copied once."""
        if not made:
            return []
        where = [(one.slot, one.request.prompt.length + step) for one, step, _ in made]
        frames = []
        for (one, _, finish), patch in zip(made, self.talker.read_patches(where), strict=True):
            if self._running.get(one.request.stream) is one:
                frames += self._hand_out(one, patch, finish)
        return frames

    def _hand_out(self, one: Running, patch: Tensor, finish: FinishReason) -> list[Frame]:
        """What one step of a stream means to its caller."""
        if not patch.isfinite().all():
            return self._fail([one], NOT_FINITE)
        if finish == "stop" and not self.talker.ends_with_frame:
            return self._end_without_frame(one)
        has_frame = not self.talker.marks_frames or bool(patch.flatten()[0])
        one.frames += has_frame
        if finish and not one.frames:
            return self._fail([one], NOTHING_SAID)
        if finish:
            self._release(one)
        elif one.frames >= one.request.max_frames:
            finish = "length"
            self._stop([one])
        if not has_frame and not finish:
            return []
        return [Frame(one.request.stream, patch.clone() if has_frame else None, finish)]

    def _stop(self, streams: Iterable[Running]) -> None:
        streams = list(streams)
        if streams:
            self._engine.abort_request([one.request.stream for one in streams])
        super()._stop(streams)
