"""The pace of requests to the API server: so many a second in all, however many pods there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

REQUESTS_PER_S: Final = 2.0


class RequestPace:
    """Spaces the requests of several threads evenly."""

    def __init__(
        self,
        per_s: float = REQUESTS_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step_s, self._clock = 1.0 / per_s, clock
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self, ending: threading.Event) -> bool:
        """Return True when the caller may send a request, or False if `ending` is set first."""
        with self._lock:
            at = max(self._clock(), self._next)
            self._next = at + self._step_s
        return not ending.wait(max(0.0, at - self._clock()))


class BackOff:
    """The time until the next try: it doubles with each failure, up to a minute."""

    FIRST_S: Final = 1.0
    LONGEST_S: Final = 60.0

    def __init__(self, random: Callable[[], float]) -> None:
        """`random` returns a number from 0 to 1, which spreads clients of one API server."""
        self._random, self._delay_s = random, 0.0

    def failed(self) -> float:
        """Return the seconds to wait after a failure."""
        self._delay_s = min(max(self.FIRST_S, 2 * self._delay_s), self.LONGEST_S)
        return self._delay_s * (0.75 + 0.25 * self._random())

    def succeeded(self) -> None:
        """Begin with the shortest time again."""
        self._delay_s = 0.0
