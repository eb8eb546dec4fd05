"""Requests that cannot be answered at once: they wait for a store, a peer, or a list that is built.

The thread that received such a request answers it, while another one receives in its place
(`receiving_threads`). So it changes no thread, and cached bytes and names are answered while a
store is down.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

log = logging.getLogger(__name__)

WAIT_S: Final = 1e-3
"""Work that takes longer counts as a wait of its reader."""

Work: TypeAlias = Callable[[], object]
_Begun: TypeAlias = tuple[float, Work]


@dataclass(frozen=True, slots=True)
class PendingStatistics:
    """Counters of the work that was submitted, since `PendingReads` was made."""

    submitted: int = 0
    waits: int = 0
    """Work that took longer than a millisecond, from its submission to its end."""
    waited_s: float = 0.0
    """Seconds of all work together, short work too."""
    under_way: int = 0
    """Work that was submitted and has not ended yet."""


class PendingReads:
    """The pending requests of one kind: at most `limit` at a time; further ones wait in order.

    Thread-safe.
    """

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[_Begun] = deque()
        self._running = self._submitted = self._ended = self._waits = 0
        self._waited_s = 0.0
        self._closed = False

    def submit(self, work: Work) -> Work | None:
        """Return what the caller's thread must run, when another thread receives in its place.

        None: `limit` threads are at work already, and one of them will run `work`. `work` answers
        its request itself; an exception is a bug, logged and dropped.
        """
        begun = time.monotonic(), work
        with self._changed:
            if self._closed:
                return None
            self._submitted += 1
            if self._running >= self._limit:
                self._waiting.append(begun)
                return None
            self._running += 1
        return lambda: self._run(begun)

    def statistics(self) -> PendingStatistics:
        """Return the counters since this was made."""
        with self._changed:
            under_way = self._submitted - self._ended
            return PendingStatistics(self._submitted, self._waits, self._waited_s, under_way)

    def drain(self, timeout_s: float) -> bool:
        """Wait until all work has ended; False if some is still under way after so long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended >= self._submitted, timeout_s)

    def close(self) -> None:
        """Take no more work, and drop what no thread has begun. Returns at once."""
        with self._changed:
            self._closed = True
            self._ended += len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self, begun: _Begun | None) -> None:
        while begun is not None:
            submitted_s, work = begun
            try:
                work()
            except Exception:
                log.exception("a pending request failed unexpectedly")
            begun = self._next(time.monotonic() - submitted_s)

    def _next(self, took_s: float) -> _Begun | None:
        """Note the end of work; return the next one that waits."""
        with self._changed:
            self._ended += 1
            self._waited_s += took_s
            self._waits += took_s > WAIT_S
            if self._ended >= self._submitted:
                self._changed.notify_all()
            if self._waiting:
                return self._waiting.popleft()
            self._running -= 1
            return None
