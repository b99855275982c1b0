"""Load from several processes: one that runs asyncio is busy long before a server is."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeAlias

from triton_speech_client.bench.speakers import Target
from triton_speech_client.bench.streams import Job, Played, Speaker, play
from triton_speech_client.errors import SpeechClientError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

SOON_SECONDS = 0.2
"""From handing out work to its beginning: time for every process to read it."""

Due: TypeAlias = "tuple[float, Job]"


@dataclass(frozen=True)
class Run:
    """The requests of one level of load. Only those due within ``begin`` to ``end`` are to be counted."""

    played: list[Played]
    begin: float
    end: float


class LoadProcesses:
    """``count`` processes with a connection each. Use it in a ``with``; leaving it ends what still runs."""

    def __init__(self, target: Target, count: int = 1) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, target), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        try:
            for pipe in self._pipes:
                _receive(pipe)  # it has started
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(2)
            if process.is_alive():
                process.terminate()
                process.join(5)

    def play_at(self, due: Sequence[Due]) -> list[Played]:
        """Sends each request at its time of the monotonic clock, whatever has become of the others."""
        count = len(self._pipes)
        return self._ask(_play_at, [(due[i::count],) for i in range(count)])

    def play_together(self, jobs: Sequence[Job]) -> Run:
        """Sends all requests at one moment and waits for the last."""
        begin = time.monotonic() + SOON_SECONDS
        played = self.play_at([(begin, job) for job in jobs])
        return Run(played, begin, max(one.end for one in played))

    def open_loop(self, jobs: Callable[[int], Job], rate: float, warmup: float, seconds: float, seed: int) -> Run:
        """Poisson arrivals, ``rate`` a second: callers come whether or not earlier ones have been served."""
        start = time.monotonic() + SOON_SECONDS
        offsets = arrivals(rate, warmup + seconds, seed)
        played = self.play_at([(start + offset, jobs(i)) for i, offset in enumerate(offsets)])
        return Run(played, start + warmup, start + warmup + seconds)

    def closed_loop(self, jobs: Callable[[int], Job], callers: int, warmup: float, seconds: float) -> Run:
        """So many callers, each of which asks again as soon as it has heard all."""
        start = time.monotonic() + SOON_SECONDS
        stop = start + warmup + seconds
        most = callers + int(_MOST_A_SECOND * callers * (warmup + seconds))
        shares: list[list[list[Job]]] = [[] for _ in self._pipes]
        for caller in range(callers):
            shares[caller % len(shares)].append([jobs(i) for i in range(caller, most, callers)])
        played = self._ask(_keep_busy, [(share, most, start, stop) for share in shares])
        return Run(played, start + warmup, stop)

    def _ask(self, work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Played]:
        try:
            for pipe, given in zip(self._pipes, arguments, strict=True):
                pipe.send((work, given))
        except OSError:
            raise _ended() from None
        return [one for pipe in self._pipes for one in _receive(pipe)]


_MOST_A_SECOND = 20
"""Requests that a caller of a closed loop is given for each second; a faster one begins again, with new seeds."""


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Times of a Poisson process within ``seconds``, from 0 on; the same for the same seed."""
    source, times, now = random.Random(seed), [], 0.0
    while (now := now + source.expovariate(rate)) < seconds:
        times.append(now)
    return times


def _receive(pipe: Connection) -> Any:
    try:
        answer = pipe.recv()
    except (EOFError, OSError):
        raise _ended() from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _ended() -> SpeechClientError:
    return SpeechClientError("a load process has ended by itself")


def _serve(pipe: Connection, target: Target) -> None:
    """The life of a load process: one piece of work after the other, on one event loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that the terminal's user sees
    loop = asyncio.new_event_loop()
    speaker = target.connect()
    pipe.send(None)
    while True:
        try:
            work, arguments = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            answer: Any = loop.run_until_complete(work(speaker, *arguments))
        except Exception as error:
            answer = error
        pipe.send(answer)
    loop.run_until_complete(speaker.close())


async def _play_at(speaker: Speaker, due: Sequence[Due]) -> list[Played]:
    async def one(when: float, job: Job) -> Played:
        await asyncio.sleep(when - time.monotonic())
        return await play(speaker, job, when)

    return await _all(one(when, job) for when, job in due)


async def _keep_busy(
    speaker: Speaker, callers: Sequence[Sequence[Job]], seeds: int, start: float, stop: float
) -> list[Played]:
    """``seeds``: how many all callers' jobs have; a round later each is so much higher."""

    async def one(jobs: Sequence[Job]) -> list[Played]:
        played: list[Played] = []
        await asyncio.sleep(start - time.monotonic())
        while time.monotonic() < stop:
            again, place = divmod(len(played), len(jobs))
            job = jobs[place]._replace(seed=(jobs[place].seed + again * seeds) % 2**64)
            played.append(await play(speaker, job))
            if played[-1].failure:
                await asyncio.sleep(_AFTER_A_FAILURE)
        return played

    return [played for every in await _all(one(jobs) for jobs in callers) for played in every]


_AFTER_A_FAILURE = 0.1
"""Seconds: a server that refuses at once must not be asked in a tight loop."""


async def _all(tasks: Any) -> list[Any]:
    work: list[Coroutine[Any, Any, Any]] = list(tasks)
    return list(await asyncio.gather(*work))
