"""Every metric of every stage; ``docs/metrics.md`` says what each one means and what to watch."""

from __future__ import annotations

from ..errors import SpeechError
from .totals import Definition

OK_REASONS = ("stop", "length")
CANCEL_REASON = "caller"
ERROR_REASONS = (
    "invalid_argument",
    "not_found",
    "full",
    "stopping",
    "stage_died",
    "stage_silent",
    "deadline",
    "unavailable",
    "internal",
)
_UNAVAILABLE_REASONS = {
    "is full": "full",
    "Exceeds maximum queue size": "full",
    "Server not ready": "stopping",
    "is stopping": "stopping",
    "has died": "stage_died",
    "is not healthy": "stage_died",
    "no answer of a stage": "stage_silent",
    "has passed": "deadline",
    "is not ready": "stage_died",
    "has no available versions": "stage_died",
}
_REASONS = {"INVALID_ARG": "invalid_argument", "NOT_FOUND": "not_found", "INTERNAL": "internal"}

_FAILURES = (("cancelled", CANCEL_REASON), *(("error", reason) for reason in ERROR_REASONS))
_SPOKEN = (*(("ok", reason) for reason in OK_REASONS), *_FAILURES)
ANSWERED = ("ok", "answered")
_ANSWERED = (ANSWERED, *_FAILURES)

_FAST_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0)
_FACTORS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 5.0)

REQUESTS = "triton_speech_requests_total"
LIVE = "triton_speech_live_requests"
FIRST_AUDIO = "triton_speech_time_to_first_audio_seconds"
REAL_TIME_FACTOR = "triton_speech_real_time_factor"
STAGE_REQUESTS = "triton_speech_stage_requests_total"
CHARACTERS = "triton_speech_text_characters_total"
AUDIO_SECONDS = "triton_speech_audio_seconds_total"
QUEUE_DEPTH = "triton_speech_queue_depth"
QUEUE_SECONDS = "triton_speech_queue_seconds"
FIRST_CHUNK = "triton_speech_first_chunk_seconds"
SLOTS = "triton_speech_slots"
SLOTS_IN_USE = "triton_speech_slots_in_use"
BATCHES = "triton_speech_batches_total"
BATCH_STREAMS = "triton_speech_batch_streams_total"
BATCH_SIZE = "triton_speech_batch_size"
REPLAYS = "triton_speech_graph_replays_total"
FALL_BACKS = "triton_speech_graph_fallbacks_total"
CACHE = "triton_speech_reference_cache_total"
CACHE_ENTRIES = "triton_speech_reference_cache_entries"
CACHE_BYTES = "triton_speech_reference_cache_bytes"

CACHE_EVENTS = ("hits", "misses", "waits", "evictions")
TALKER_GRAPHS = ("decode", "prompt", "tail")
CODEC_GRAPHS = ("codec",)
DIFFUSION_GRAPHS = ("diffusion",)


def _ended(name: str, description: str, series: tuple[tuple[str, str], ...]) -> Definition:
    return Definition(name, "counter", description, ("outcome", "reason"), series)


def _batches(graphs: tuple[str, ...]) -> tuple[Definition, ...]:
    """What both stages have that run streams in batches."""
    kinds = tuple((kind,) for kind in graphs)
    return (
        Definition(QUEUE_DEPTH, "gauge", "Streams that wait: in the talker for a slot, in the codec for a batch"),
        Definition(SLOTS, "gauge", "Streams that this stage can hold at once"),
        Definition(SLOTS_IN_USE, "gauge", "Streams that this stage holds"),
        Definition(
            BATCHES, "counter", "Batches that were run: the talker's steps, the codec's decodes, solved batches"
        ),
        Definition(
            BATCH_STREAMS, "counter", "Streams of all batches together; divided by the batches, their mean size"
        ),
        Definition(BATCH_SIZE, "gauge", "Streams in the latest batch; 0 while none runs"),
        Definition(REPLAYS, "counter", "Steps that a CUDA graph replayed", ("kind",), kinds),
        Definition(FALL_BACKS, "counter", "Steps that fitted no CUDA graph and ran without", ("kind",), kinds),
    )


FRONT_DOOR = (
    _ended(REQUESTS, "Requests to the front door by how they ended", _SPOKEN),
    Definition(LIVE, "gauge", "Requests that are being answered"),
    Definition(
        FIRST_AUDIO, "histogram", "From a request's arrival to its first samples, in the server", buckets=_FAST_SECONDS
    ),
    Definition(
        REAL_TIME_FACTOR,
        "histogram",
        "(wall time - time to first audio) / seconds of audio, of each request that was spoken to its end",
        buckets=_FACTORS,
    ),
)
FRONTEND = (
    _ended(STAGE_REQUESTS, "Requests to one stage by how they ended", _ANSWERED),
    Definition(CHARACTERS, "counter", "Characters of text that were accepted"),
)
REFERENCE = (
    _ended(STAGE_REQUESTS, "Requests to one stage by how they ended", _ANSWERED),
    Definition(
        CACHE,
        "counter",
        "What happened in the cache of encoded recordings; each miss is one encode",
        ("event",),
        tuple((event,) for event in CACHE_EVENTS),
    ),
    Definition(CACHE_ENTRIES, "gauge", "Recordings in the cache"),
    Definition(CACHE_BYTES, "gauge", "Bytes of latents in the cache"),
    Definition(LIVE, "gauge", "Requests that are being answered"),
)
TALKER = (
    _ended(STAGE_REQUESTS, "Requests to one stage by how they ended", _SPOKEN),
    *_batches(TALKER_GRAPHS),
    Definition(QUEUE_SECONDS, "histogram", "Wait of a stream for its slot", buckets=_FAST_SECONDS),
    Definition(
        FIRST_CHUNK, "histogram", "From a stream's arrival at the talker to its first chunk", buckets=_FAST_SECONDS
    ),
)
DIFFUSION = (
    _ended(STAGE_REQUESTS, "Requests to one stage by how they ended", _ANSWERED),
    *(one for one in _batches(DIFFUSION_GRAPHS) if one.name in (BATCHES, BATCH_STREAMS, REPLAYS, FALL_BACKS)),
)
CODEC = (
    _ended(STAGE_REQUESTS, "Requests to one stage by how they ended", _ANSWERED),
    *_batches(CODEC_GRAPHS),
    Definition(AUDIO_SECONDS, "counter", "Seconds of audio that were made, for all pipelines"),
)


def how_it_failed(error: BaseException) -> tuple[str, str]:
    """Outcome and reason of what ended with an error."""
    if not isinstance(error, SpeechError):
        return "error", "internal"
    if error.code == "CANCELLED":
        return "cancelled", CANCEL_REASON
    if error.code != "UNAVAILABLE":
        return "error", _REASONS[error.code]
    marks = (reason for mark, reason in _UNAVAILABLE_REASONS.items() if mark in error.text)
    return "error", next(marks, "unavailable")


def how_it_finished(reason: str) -> tuple[str, str]:
    """Outcome and reason of a stream with this FINISH_REASON."""
    return ("cancelled", CANCEL_REASON) if reason == "cancelled" else ("ok", reason)
