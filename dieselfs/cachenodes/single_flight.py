"""What many want at a time is done once: the first does it, the others wait for what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Flight:
    ended: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class SingleFlight:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight] = {}

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Return when `work` is done, by this thread or by the one that was first. Raises what it raises, to all."""
        with self._lock:
            flight = self._flights.get(key)
            is_first = flight is None
            if flight is None:
                flight = self._flights[key] = _Flight()
        if not is_first:
            flight.ended.wait()
            if flight.error is not None:
                raise flight.error
            return
        try:
            work()
        except Exception as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                del self._flights[key]
            flight.ended.set()

    def is_under_way(self, key: Hashable) -> bool:
        return key in self._flights
