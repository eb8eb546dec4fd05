"""Single flight: concurrent requests for the same thing share one fetch.

The first request does the work, the others wait for its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from chunkstore.after_fork import renew_now_and_after_fork

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """The work under way, by key. Thread-safe. A forked child begins with none."""

    def __init__(self) -> None:
        self._lock: threading.Lock
        self._flights: dict[Hashable, Future[T]]
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        """Start without work in a forked child, which has none of the threads that do it."""
        self._lock, self._flights = threading.Lock(), {}

    def run(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return or raise what `work` does, in this thread or in the one that came first."""
        return self.begin(key, work, lambda land: land()).result()

    def begin(
        self, key: Hashable, work: Callable[[], T], start: Callable[[Callable[[], None]], None]
    ) -> Future[T]:
        """Return the result to come of the work for this key.

        If there is none under way, `start` gets a function that does the work and never raises: it
        calls the function, or lets another thread call it. Raises what `start` does.
        """
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight
            flight = self._flights[key] = Future()
        try:
            start(lambda: self._land(key, flight, work))
        except BaseException as error:
            self._end(key)
            flight.set_exception(error)
            raise
        return flight

    def is_under_way(self, key: Hashable) -> bool:
        """Return whether work for this key is under way."""
        return key in self._flights

    def _land(self, key: Hashable, flight: Future[T], work: Callable[[], T]) -> None:
        try:
            found = work()
        except BaseException as error:
            self._end(key)
            flight.set_exception(error)
        else:
            self._end(key)
            flight.set_result(found)

    def _end(self, key: Hashable) -> None:
        with self._lock:
            self._flights.pop(key, None)
