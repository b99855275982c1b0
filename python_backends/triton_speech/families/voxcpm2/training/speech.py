"""The teacher's speech of all texts: FLAC files of some hundred utterances each, made in parallel."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray

from .clock import Clock
from .settings import SpeechSettings
from .speakers import SAMPLE_RATE, SPEAKERS, speak_as
from .teacher import Teacher, tidy
from .texts import Row, read_rows


@dataclass(frozen=True)
class Job:
    """What the processes that speak have to know.

    Attributes:
        rows: the file that ``make_texts`` wrote.
        teacher: its ONNX file.
        target: the folder of the shards.
        patch: samples at SAMPLE_RATE; every utterance is padded to a multiple of it.
    """

    rows: Path
    teacher: Path
    target: Path
    settings: SpeechSettings
    patch: int


@dataclass(frozen=True)
class Shard:
    """Utterances one after the other: samples (N,) int16 at SAMPLE_RATE, ``counts`` of them for each of ``rows``."""

    samples: NDArray[np.int16]
    rows: list[int]
    counts: list[int]


def make_speech(job: Job, *, workers: int, clock: Clock) -> bool:
    """Makes the shards that are missing and returns whether none is now; begins none that the clock would end first.

    A shard depends on its number alone, not on which of the ``workers`` processes makes it and what it made before.
    """
    job.target.mkdir(parents=True, exist_ok=True)
    with job.rows.open(encoding="utf-8") as file:
        count = sum(1 for _ in file)
    numbers = range(-(-count // job.settings.shard))[: job.settings.limit]
    missing = iter([number for number in numbers if not _index(job.target, number).is_file()])
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (job,)) as pool:
        running: set[Future[float]] = set()
        slowest = 0.0
        while True:
            if clock.left() > slowest:
                running |= {pool.submit(_make_shard, number) for number in islice(missing, workers - len(running))}
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            slowest = max(slowest, *(one.result() for one in done))
    return all(_index(job.target, number).is_file() for number in numbers)


def read_shards(folder: Path, known: set[Path]) -> Iterator[Shard]:
    """The shards that are there and not yet ``known``, which they are afterwards."""
    for index in sorted(set(folder.glob("*.json")) - known):
        known.add(index)
        samples, _ = soundfile.read(index.with_suffix(".flac"), dtype="int16")
        content = json.loads(index.read_text(encoding="utf-8"))
        yield Shard(samples, content["rows"], content["counts"])


_job: Job
_rows: list[Row]


def _begin(job: Job) -> None:
    global _job, _rows
    _job, _rows = job, read_rows(job.rows)
    # One process for each core: more threads of each would only stand in each other's way.
    torch.set_num_threads(1)


def _make_shard(number: int) -> float:
    """Returns the seconds that it took."""
    began = time.monotonic()
    first = number * _job.settings.shard
    # A new session for each shard: its noise depends on the seed and on all that it has said before.
    teacher = Teacher(_job.teacher, seed=_job.settings.seed * 1_000_003 + number)
    parts, rows = [], []
    for index, row in enumerate(_rows[first : first + _job.settings.shard], first):
        speaker = SPEAKERS[row.speaker]
        spoken = speak_as(speaker, teacher.speak(row.ids, speaker.length_scale), teacher.sample_rate)
        said = tidy(spoken, SAMPLE_RATE)
        parts.append(np.pad(said, (0, -len(said) % _job.patch)))
        rows.append(index)
    samples = (np.concatenate(parts) * 32767).round().astype(np.int16)
    target = _index(_job.target, number)
    # The index comes last: a shard that has one is whole.
    soundfile.write(target.with_suffix(".flac"), samples, SAMPLE_RATE)
    unfinished = target.with_suffix(".part")
    unfinished.write_text(json.dumps({"rows": rows, "counts": [len(part) for part in parts]}), encoding="utf-8")
    unfinished.replace(target)
    return time.monotonic() - began


def _index(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.json"
