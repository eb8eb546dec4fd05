"""Waiting in line: a semaphore that is first come, first served, and whose limit moves."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """At most as many at once as `limit` says; the others wait in order. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._taken = 0
        self._waiting: deque[threading.Lock] = deque()
        self.waited = 0
        """How many had to."""

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, timeout_s: float) -> bool:
        """Wait for a turn; False if none came in time. True obliges to `give_back`."""
        with self._lock:
            if self._taken < self._limit and not self._waiting:
                self._taken += 1
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
            self.waited += 1
        try:
            came = turn.acquire(timeout=timeout_s)
        except BaseException:  # an interrupt
            if not self._leave(turn):
                self.give_back()
            raise
        return came or not self._leave(turn)

    def give_back(self) -> None:
        with self._lock:
            self._taken -= 1
            self._serve()

    def set_limit(self, limit: int) -> None:
        """Those that are over a lower limit go on."""
        with self._lock:
            self._limit = limit
            self._serve()

    def _leave(self, turn: threading.Lock) -> bool:
        """Whether it still waited; else its turn has come in this moment."""
        with self._lock:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            return True

    def _serve(self) -> None:
        while self._waiting and self._taken < self._limit:
            self._taken += 1
            self._waiting.popleft().release()
