"""The soak's kills: one stage after the other, and which errors of callers they explain."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import soak_family
from launched import Launcher
from soak_hearing import Ending

from triton_speech_client.errors import DeadlineExceeded, ServerUnavailable, SpeechClientError

BACK_SECONDS = 300.0
POLL_SECONDS = 0.05
STEADY_SECONDS = 1.0
"""Between one that is healed and the next kill, so that no error has two causes."""


@dataclass
class Kill:
    """One kill; times as ``time.monotonic``, ``back`` when the launcher said that all is well again.

    ``heard``: of the streams that it broke, the seconds until their callers had the error. ``refused``: of streams that
    began before it was healed.
    """

    stage: str
    at: float
    back: float = float("inf")
    aborted: bool = False
    heard: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    others: int = 0
    """Changes of voices that failed."""


@dataclass
class Kills:
    """Makes ``number`` kills, the stages in turn, and judges errors.

    ``heard_seconds``: a caller whose stream is hit has to hear of it within this time.
    """

    launcher: Launcher
    number: int
    heard_seconds: float
    made: list[Kill] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    async def run(self, progress: Callable[[], float]) -> None:
        """Spreads the kills evenly; returns when the last one is healed.

        Args:
            progress: share of the load that has begun, 0 to 1.
        """
        stages = itertools.cycle(soak_family.chosen.stages)
        for number in range(self.number):
            while progress() < (number + 1) / (self.number + 1):
                await asyncio.sleep(POLL_SECONDS)
            await self._kill(next(stages))
            await asyncio.sleep(STEADY_SECONDS)

    async def _kill(self, stage: str) -> None:
        before = await asyncio.to_thread(self.launcher.report)
        self.launcher.kill(stage)
        kill = Kill(stage, time.monotonic())
        self.made.append(kill)
        while time.monotonic() - kill.at < BACK_SECONDS:
            report = await asyncio.to_thread(self.launcher.report)
            kill.aborted = report["restarts"] > before["restarts"]
            if report["ready"] and (kill.aborted or report["heals"] > before["heals"]):
                kill.back = time.monotonic()
                return
            await asyncio.sleep(POLL_SECONDS)
        self.faults.append(f"{stage} was not back within {BACK_SECONDS:g} s of its kill")
        kill.back = time.monotonic()

    def explain(self, ending: Ending) -> bool:
        """Whether a kill explains a stream's error: told as a passing one, in time, by a stream that it could hit."""
        kill = self._around(ending.began, ending.ended)
        if kill is None or not isinstance(ending.error, ServerUnavailable):
            return False
        was_running = ending.began <= kill.at
        seconds = ending.ended - max(ending.began, kill.at)
        if seconds > self.heard_seconds:
            return False
        (kill.heard if was_running else kill.refused).append(seconds)
        return True

    def explain_voices(self, began: float, error: SpeechClientError) -> bool:
        """The same for a call of ``voices``, which has its client's own limit: nobody hangs up on it."""
        kill = self._around(began, time.monotonic())
        if kill is None or not isinstance(error, ServerUnavailable | DeadlineExceeded):
            return False
        kill.others += 1
        return True

    def _around(self, began: float, ended: float) -> Kill | None:
        """The latest kill that hit something which ran at that time."""
        return next((kill for kill in reversed(self.made) if kill.at <= ended and began <= kill.back), None)


def print_kills(kills: list[Kill]) -> None:
    """A row for each stage."""
    print(
        "| stage | kills | streams broken | heard p50 / worst, s | refused until healed | worst, s "
        "| back p50 / worst, s | voices' calls | server aborts |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for stage in soak_family.chosen.stages:
        of_stage = [kill for kill in kills if kill.stage == stage]
        heard = [seconds for kill in of_stage for seconds in kill.heard]
        refused = [seconds for kill in of_stage for seconds in kill.refused]
        back = [kill.back - kill.at for kill in of_stage]
        print(
            f"| `{stage}` | {len(of_stage)} | {len(heard)} | {_spread(heard)} | {len(refused)} | "
            f"{max(refused, default=0):.2f} | {_spread(back)} | {sum(kill.others for kill in of_stage)} | "
            f"{sum(kill.aborted for kill in of_stage)} |"
        )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} / {max(values):.2f}" if values else "-"
