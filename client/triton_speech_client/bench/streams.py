"""One request as a listener has it: when its audio came, and whether a player could go on playing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from triton_speech_client.errors import SpeechClientError

DEFINITIONS = """\
First audio: from the time at which a request was due to its first chunk with samples, at the client. In an open loop a
request is due when the schedule says so, also where the load processes or the server were late; in a closed loop when
it was sent.
RTF: real-time factor of a request, (its last chunk - due) / seconds of its audio.
Underrun: the longest time that a player which begins with the first audio would have had to wait for a later chunk.
Clean: share of the requests whose underrun a player that holds back its first audio for the player's buffer would not
have heard; a request that failed or brought no audio is not clean.
audio-s/s: seconds of audio that arrived within the window, by the length of the window; of all requests.
requests/s: requests that ended well within the window, by its length.
Percentiles are nearest ranks over the requests that were due within the window and did not fail: with fewer than 100,
p99 is the slowest one. The warm-up before the window is thrown away. Nothing is sent twice.
Late: how much later than due a request was sent (p99). More than a few ms: the load processes are too few."""


class Job(NamedTuple):
    """What to speak."""

    text: str
    seed: int


class Piece(NamedTuple):
    """What one chunk brought: seconds of audio; the finish reason is empty but for the last."""

    seconds: float
    finish_reason: str = ""


class Speaker(Protocol):
    """A way to a server; belongs to one event loop."""

    def speak(self, job: Job) -> AsyncIterator[Piece]:
        """The pieces of one request as they come; raises ``SpeechClientError``."""
        ...

    async def close(self) -> None:
        """Ends the connection."""
        ...


@dataclass(frozen=True)
class Played:
    """A request that has ended. Times are seconds of this host's monotonic clock, the same in every process."""

    job: Job
    due: float
    sent: float
    end: float
    arrivals: tuple[tuple[float, float], ...] = ()
    """Time and seconds of audio of each chunk that had any."""
    finish_reason: str = ""
    failure: str = ""
    """Name of the error's class; empty where all went well."""
    failure_text: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ended well and brought audio."""
        return not self.failure and bool(self.arrivals)

    @property
    def seconds(self) -> float:
        """Seconds of audio."""
        return sum(seconds for _, seconds in self.arrivals)

    @property
    def first_audio(self) -> float:
        """Seconds from due to the first audio."""
        return self.arrivals[0][0] - self.due

    @property
    def real_time_factor(self) -> float:
        """All of its time, by its seconds of audio."""
        return (self.end - self.due) / self.seconds

    @property
    def playing_factor(self) -> float:
        """The time from its first audio on, by its seconds of audio."""
        return (self.end - self.arrivals[0][0]) / self.seconds

    @property
    def underrun(self) -> float:
        """Seconds, 0 where a player never had to wait."""
        worst = heard = 0.0
        for arrival, seconds in self.arrivals:
            worst = max(worst, arrival - self.arrivals[0][0] - heard)
            heard += seconds
        return worst


async def play(speaker: Speaker, job: Job, due: float | None = None) -> Played:
    """Asks for speech and takes it in as fast as it comes; without ``due`` the request is due now."""
    sent = time.monotonic()
    arrivals, reason, failure, text = [], "", "", ""
    try:
        async for piece in speaker.speak(job):
            if piece.seconds:
                arrivals.append((time.monotonic(), piece.seconds))
            reason = piece.finish_reason
    except SpeechClientError as error:
        failure, text = type(error).__name__, str(error)
    if not failure and not arrivals:
        failure, text = "NoAudio", "the request ended well, without audio"
    return Played(job, sent if due is None else due, sent, time.monotonic(), tuple(arrivals), reason, failure, text)
