"""Single flight: concurrent requests for the same thing share one fetch.

The first request does the work, the others wait for its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """The work under way, by key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Future[T]] = {}

    def run(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return or raise what `work` does, in this thread or in the one that came first."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                mine = self._flights[key] = Future()
        if flight is not None:
            return flight.result()
        try:
            found = work()
        except BaseException as error:
            self._end(key)
            mine.set_exception(error)
            raise
        self._end(key)
        mine.set_result(found)
        return found

    def _end(self, key: Hashable) -> None:
        with self._lock:
            del self._flights[key]

    def is_under_way(self, key: Hashable) -> bool:
        """Return whether work for this key is under way."""
        return key in self._flights
