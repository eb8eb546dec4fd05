"""The loop of every warm-up: threads that load units, such as blocks, until all are loaded.

Readers go before them where both wait for a byte budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Generic, TypeVar

from chunkstore.call_threads import CallThreads
from chunkstore.stores.read_turn import ReadTurn, reading

Unit = TypeVar("Unit")
PAUSE_S: Final = 0.05
"""The pause before a unit that was refused is tried again.

An SSD of 1 GB/s then still has nearly all of its queue to write.
"""


class LoadLoop(Generic[Unit]):
    """Units to load. One that cannot be loaded now is tried again, after the others."""

    def __init__(self, units: Iterable[Unit]) -> None:
        self._left = deque((unit, False) for unit in units)
        self.is_stopped = False

    def run(self, load: Callable[[Unit, bool], bool], jobs: int) -> None:
        """Load all units, once; an error of `load` ends the loop.

        `load` gets a unit, and whether it was refused before. It returns False to refuse it.
        """
        try:
            CallThreads("warm-up", jobs).run_all([partial(self._load_all, load)] * jobs, jobs)
        finally:
            self.is_stopped = True

    def stop(self) -> None:
        """Start no further unit."""
        self.is_stopped = True

    def _load_all(self, load: Callable[[Unit, bool], bool]) -> None:
        try:
            with reading(ReadTurn(ahead=True)):
                while not self.is_stopped:
                    try:
                        unit, again = self._left.popleft()
                    except IndexError:  # the threads with the last ones try these again
                        return
                    if not load(unit, again):
                        self._left.append((unit, True))
        except BaseException:
            self.is_stopped = True
            raise
