"""How long a batch waits for company: a bounded window, opened by the first ready stream and never extended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

WaitPolicy = Literal["fixed", "idle_wait"]
POLICIES: tuple[WaitPolicy, ...] = ("fixed", "idle_wait")


class Act(Enum):
    """What the owner of the batches does next."""

    DISPATCH = auto()
    """Run a batch of what is ready."""
    RETIRE = auto()
    """Collect the oldest batch that is still running, then ask again; an open window stays as it is."""
    WAIT = auto()
    """Wait for something to arrive, ``seconds`` at most (None: without end), then ask again."""


@dataclass(frozen=True)
class Decision:
    act: Act
    seconds: float | None = None


@dataclass(frozen=True)
class Load:
    """What a decision rests on.

    Attributes:
        ready: streams with something to decode.
        ready_since: when the oldest of that became ready; read only where ``ready`` is not 0.
        live: streams that have begun and not ended, ready or not.
        running: batches handed out whose results have not been collected.
    """

    ready: int
    ready_since: float
    live: int
    running: int


@dataclass
class CoalescingWindow:
    """Decides between running a small batch now and waiting for a fuller one.

    A batch goes at once where waiting is off, where ``min_batch`` streams are ready, or where fewer than that are
    alive, so that waiting could not fill it. Else its deadline is ``max_wait_ms`` after its first ready chunk came;
    nothing that comes later, a first or a last chunk included, moves it. Each batch has a window of its own.

    ``idle_wait``: with nothing ready and nothing running, control comes back after ``max_wait_ms`` at the latest, and
    the chunk that ends an idle time opens its window when it is seen instead of when it came: a control message waits
    for twice ``max_wait_ms`` at most. ``fixed`` waits for the first chunk without end.

    Raises:
        ValueError: ``min_batch`` is not 1 to ``max_batch``, ``max_wait_ms`` is negative or not finite, or the policy
            is unknown.
    """

    max_batch: int
    min_batch: int = 1
    max_wait_ms: float = 0.0
    policy: WaitPolicy = "fixed"
    _deadline: float | None = field(default=None, init=False)
    _was_idle: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.min_batch <= self.max_batch:
            raise ValueError(f"min_batch is {self.min_batch}, must be 1 to max_batch ({self.max_batch})")
        if not (math.isfinite(self.max_wait_ms) and self.max_wait_ms >= 0):
            raise ValueError(f"max_wait_ms is {self.max_wait_ms}, must be finite and at least 0")
        if self.policy not in POLICIES:
            raise ValueError(f"wait_policy is {self.policy!r}, must be {' or '.join(map(repr, POLICIES))}")

    def decide(self, now: float, load: Load) -> Decision:
        """The next act at time ``now`` (seconds, of the clock that ``load.ready_since`` was read from)."""
        if not load.ready:
            return self._without_work(load)
        wait = self.max_wait_ms / 1000
        if self._deadline is None:
            fresh = self._was_idle and self.policy == "idle_wait"
            self._deadline = (now if fresh else load.ready_since) + wait
            self._was_idle = False
        # Fewer live than wanted: nobody is left to wait for.
        if not wait or load.ready >= self.min_batch or load.live < self.min_batch or now >= self._deadline:
            self._deadline = None
            return Decision(Act.DISPATCH)
        if load.running:
            return Decision(Act.RETIRE)
        return Decision(Act.WAIT, self._deadline - now)

    def _without_work(self, load: Load) -> Decision:
        self._deadline = None
        if load.running:
            return Decision(Act.RETIRE)
        self._was_idle = True
        bounded = self.policy == "idle_wait" and self.max_wait_ms > 0 and load.live > 0
        return Decision(Act.WAIT, self.max_wait_ms / 1000 if bounded else None)
