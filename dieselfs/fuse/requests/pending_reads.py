"""The threads for requests that cannot be answered at once.

Such requests wait for a store, a peer, or a list that is built. The threads of a connection never
wait, so that cached bytes and names are answered while a store is down. A thread is started when
work is submitted and none is idle. All are daemon threads: work that hangs does not keep the
process alive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

WAIT_S: Final = 1e-3
"""Work that takes longer counts as a wait of its reader."""

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class PendingStatistics:
    """Counters of the work that was submitted, since the pool was made."""

    submitted: int = 0
    waits: int = 0
    """Work that took longer than a millisecond, from its submission to its end."""
    waited_s: float = 0.0
    """Seconds of all work together, short work too."""
    under_way: int = 0
    """Work that was submitted and has not ended yet."""


class PendingReads:
    """A pool that runs at most `threads` tasks at a time; further ones wait their turn, in order.

    Thread-safe.
    """

    def __init__(self, threads: int = 32, name: str = "pending") -> None:
        self._limit, self._name = threads, name
        self._changed = threading.Condition()
        self._waiting: deque[tuple[float, Work]] = deque()
        self._threads = self._idle = 0
        self._submitted = self._ended = self._waits = 0
        self._waited_s = 0.0
        self._closed = False

    def submit(self, work: Work) -> None:
        """Run `work` soon.

        It answers its request itself; an exception is a bug, logged and dropped.
        """
        with self._changed:
            if self._closed:
                return
            self._submitted += 1
            self._waiting.append((time.monotonic(), work))
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._threads < self._limit:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def statistics(self) -> PendingStatistics:
        """Return the counters since the pool was made."""
        with self._changed:
            under_way = self._submitted - self._ended
            return PendingStatistics(self._submitted, self._waits, self._waited_s, under_way)

    def drain(self, timeout_s: float) -> bool:
        """Wait until all work has ended; False if some is still under way after so long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended >= self._submitted, timeout_s)

    def close(self) -> None:
        """Take no more work, drop what no thread has begun, and end idle threads.

        Returns at once.
        """
        with self._changed:
            self._closed = True
            self._ended += len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            submitted_s, work = taken
            try:
                work()
            except Exception:
                log.exception("a pending request failed unexpectedly")
            del work, taken  # it may hold a chunk's memory
            self._note_end(time.monotonic() - submitted_s)

    def _next(self) -> tuple[float, Work] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None

    def _note_end(self, took_s: float) -> None:
        with self._changed:
            self._ended += 1
            self._waited_s += took_s
            self._waits += took_s > WAIT_S
            if self._ended >= self._submitted:
                self._changed.notify_all()
