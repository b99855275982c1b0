"""The soak's streams: what is asked for, what it sounds like alone, and how a caller may treat it."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import soundfile
from tritonclient.grpc import InferResult, service_pb2_grpc

from triton_speech_client import wire

PIPELINES = ("voxcpm2", "voxcpm2_pipeline")
STREAM_SECONDS = 240.0
SHORTEST, LONGEST = 0.3, 3.0
WORDS = ("the", "a", "old", "quick", "brown", "fox", "jumps", "over", "river", "morning", "kettle", "window", "train")
STABLE = ("stable-0", "stable-1", "stable-2", "stable-3")
RESTLESS = ("restless-0", "restless-1", "restless-2")
TAKES = (4, 5)
"""The recordings, by number, that the restless voices are replaced by."""
UNKNOWN_VOICE = "is not known"

Options = Mapping[str, Any]


def recording(number: int) -> bytes:
    """A WAV file of 1.2 s or more; no two numbers sound the same."""
    time = np.arange(int((1.2 + 0.3 * number) * 16_000)) / 16_000
    pitch = 90 + 37 * number
    samples = 0.1 * sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 20))
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV")
    return file.getvalue()


RECORDINGS = [recording(number) for number in range(6)]
STABLE_RECORDINGS: Mapping[str, Options] = {
    "stable-0": {"reference": RECORDINGS[0]},
    "stable-1": {"reference": RECORDINGS[1]},
    "stable-2": {"prompt_audio": RECORDINGS[2], "prompt_text": "One two three."},
    "stable-3": {"reference": RECORDINGS[3], "prompt_audio": RECORDINGS[2], "prompt_text": "One two."},
}

BAD: Sequence[Options] = (
    {"text": ""},
    {"voice": "nobody"},
    {"reference": b"RIFF and no more"},
    {"prompt_audio": RECORDINGS[2]},
    {"cfg_value": float("nan")},
    {"max_seconds": -1.0},
    {"chunk_schedule": [0]},
    {"inference_steps": 1000},
)


@dataclass
class Marked:
    """A request whose samples are known: one of ``alone``, which has more than one for a voice that is replaced."""

    options: Options
    solo_options: Sequence[Options]
    alone: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Manner:
    """How a caller treats a stream: it may leave after some seconds or chunks, or read slowly."""

    leaves_after_seconds: float | None = None
    leaves_after_chunks: int | None = None
    pause: float = 0.0

    @property
    def leaves(self) -> bool:
        return self.leaves_after_seconds is not None or self.leaves_after_chunks is not None


@dataclass
class Ending:
    """All that a stream brought: samples, final flags, error texts; ``left`` by its caller, ``broken`` by gRPC."""

    samples: list[Any] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    finals: int = 0
    left: bool = False
    broken: str = ""

    def audio(self) -> Any:
        return np.concatenate(self.samples) if self.samples else np.zeros(0, np.float32)

    def fault(self) -> str:
        """What is wrong with the way this stream went; empty for one that ended once, whole, or by its caller."""
        if self.broken:
            return self.broken
        if self.indices != list(range(len(self.indices))):
            return f"chunks {self.indices}"
        if self.left and self.finals == 0:
            return ""
        if self.finals != 1:
            return f"{self.finals} final flags"
        if self.errors:
            return "" if len(self.errors) == 1 else f"errors {self.errors}"
        if not self.reasons or self.reasons[-1] not in ("stop", "length") or any(self.reasons[:-1]):
            return f"finish reasons {self.reasons}"
        return ""


def random_text(source: random.Random) -> str:
    return " ".join(source.choices(WORDS, k=source.randint(1, 12))).capitalize() + "."


def random_options(source: random.Random, number: int) -> Options:
    """One request; the kinds take turns."""
    options: dict[str, Any] = {
        "text": random_text(source),
        "seed": source.getrandbits(32),
        "max_seconds": round(source.uniform(SHORTEST, LONGEST), 2),
    }
    if source.random() < 0.3:
        options["cfg_value"] = round(source.uniform(1, 4), 2)
    if source.random() < 0.2:
        options["inference_steps"] = source.choice((4, 6))
    kinds: Sequence[Options] = (
        {},
        {"voice": STABLE[number // 7 % len(STABLE)]},
        {"reference": RECORDINGS[number // 7 % 4]},
        {"voice": RESTLESS[number // 7 % len(RESTLESS)]},
        {"prompt_audio": RECORDINGS[2], "prompt_text": "One two three."},
        {"instruction": "A calm old man."},
        {"reference": RECORDINGS[3], "prompt_audio": RECORDINGS[2], "prompt_text": "One two."},
    )
    return {**options, **kinds[number % len(kinds)]}


def make_marked(source: random.Random, number: int) -> list[Marked]:
    marked = []
    for n in range(number):
        options = random_options(source, n)
        takes = [options]
        if options.get("voice") in RESTLESS:
            without = {name: value for name, value in options.items() if name != "voice"}
            takes = [{**without, "reference": RECORDINGS[take]} for take in TAKES]
        marked.append(Marked(options, takes))
    return marked


def random_schedule(source: random.Random) -> list[int]:
    return [source.randint(1, 8) for _ in range(source.randint(1, 4))]


def random_manner(source: random.Random, cancels: float, slow: float) -> Manner:
    """Of all callers, the share ``cancels`` leaves, half of these before the first chunk, and ``slow`` reads slowly."""
    pause = source.uniform(0.05, 0.3) if source.random() < slow else 0.0
    if source.random() >= cancels:
        return Manner(pause=pause)
    if source.random() < 0.5:
        return Manner(leaves_after_seconds=source.choice((0.0, source.uniform(0, 0.1), source.uniform(0, 1.0))))
    return Manner(leaves_after_chunks=source.randint(1, 4), pause=pause)


async def play(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, pipeline: str, options: Options, manner: Manner | None = None
) -> Ending:
    """One stream, from its request to its end or its caller's leaving."""
    manner = manner or Manner()
    ending = Ending()
    call = stub.ModelStreamInfer(iter((wire.infer_request(pipeline, request_id="", pcm16=False, **options),)))
    reading = asyncio.ensure_future(_read(call, ending, manner))
    limit = STREAM_SECONDS if manner.leaves_after_seconds is None else manner.leaves_after_seconds
    done, _ = await asyncio.wait({reading}, timeout=limit)
    if not done:
        ending.left = manner.leaves
        if not manner.leaves:
            ending.broken = f"no end within {STREAM_SECONDS:g} s"
        call.cancel()
        await asyncio.wait({reading})
    if not reading.cancelled() and (error := reading.exception()) is not None and not ending.left:
        ending.broken = repr(error)
    elif reading.cancelled() and not ending.left and not ending.broken:
        ending.broken = "the call was cancelled"
    return ending


async def _read(call: Any, ending: Ending, manner: Manner) -> None:
    while (message := await call.read()) is not grpc.aio.EOF:
        _take(message, ending)
        if manner.leaves_after_chunks is not None and len(ending.samples) >= manner.leaves_after_chunks:
            ending.left = True
            call.cancel()
            return
        if manner.pause:
            await asyncio.sleep(manner.pause)


def _take(message: Any, ending: Ending) -> None:
    response = message.infer_response
    ending.finals += response.parameters["triton_final_response"].bool_param
    if message.error_message:
        ending.errors.append(message.error_message)
    elif response.outputs:
        result = InferResult(response)
        ending.samples.append(result.as_numpy("AUDIO").copy())
        ending.indices.append(int(result.as_numpy("CHUNK_INDEX").item()))
        ending.reasons.append(result.as_numpy("FINISH_REASON").item().decode())
