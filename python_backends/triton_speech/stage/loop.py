"""An event loop on a thread of its own, for stages that answer later than ``execute`` returns."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class LoopThread:
    """Runs coroutines beside the stub's own thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # The loop itself holds tasks only weakly.
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins ``work`` and returns; an error that it lets out goes to the log."""
        self._loop.call_soon_threadsafe(self._begin, work)

    def close(self, timeout: float = 10.0) -> None:
        """Lets what was begun come to its end, then ends the thread."""
        asyncio.run_coroutine_threadsafe(self._drain(timeout), self._loop).result(timeout + 1)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request could not be answered", exc_info=error)

    async def _drain(self, timeout: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
