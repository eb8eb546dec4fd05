"""A first-come, first-served semaphore with a variable limit."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A queue that admits at most `limit` users at once, in order. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._taken = 0
        self._waiting: deque[threading.Lock] = deque()
        self.waited = 0
        """The number of users that had to wait."""

    @property
    def taken(self) -> int:
        """The number of users that have a turn now."""
        return self._taken

    @property
    def waiting(self) -> int:
        """The number of users that wait now."""
        return len(self._waiting)

    def take(self, timeout_s: float) -> bool:
        """Wait for a turn; return False if none came in time.

        After True the caller must call `give_back`.
        """
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
        """Give a turn back, and admit the next user."""
        with self._lock:
            self._taken -= 1
            self._serve()

    def set_limit(self, limit: int) -> None:
        """Set the limit; users above a lower limit keep their turns."""
        with self._lock:
            self._limit = limit
            self._serve()

    def _leave(self, turn: threading.Lock) -> bool:
        """Leave the queue; return False if the turn has just come."""
        with self._lock:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            return True

    def _serve(self) -> None:
        while self._waiting and self._taken < self._limit:
            self._taken += 1
            self._waiting.popleft().release()
