"""A wrapper that bounds the reads in flight by what the store answers well.

The limit follows latency and errors (`aimd`), and readers take turns in order (`turns`). It counts
reads of callers, not requests: a hedge and the late request that it overtook belong to one read,
whose place is free when it is answered. So a slow object blocks no other read, and only the budget
of hedges bounds the abandoned requests at the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from chunkstore.errors import Unavailable
from chunkstore.stores.aimd import Aimd, LimitPolicy
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from chunkstore.stores.time_left import time_left_s
from chunkstore.stores.turns import Turns

_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class LimitStatistics:
    """The limit, the queue and the counts of one `LimitedStore`."""

    limit: int = 0
    """Reads that may be in flight now."""
    in_flight: int = 0
    """Reads in flight now."""
    waiting: int = 0
    """Reads that wait for their turn now."""
    waited: int = 0
    """Reads that had to wait for their turn."""
    increases: int = 0
    decreases: int = 0


class LimitedStore(ReadWrapper):
    """A wrapper that limits `get` and `get_range` of a store, and passes on the other calls."""

    def __init__(
        self,
        store: ObjectStore,
        policy: LimitPolicy | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(store)
        self._clock = clock
        self._lock = threading.Lock()
        self._aimd = Aimd(policy or LimitPolicy())
        self._turns = Turns(self._aimd.limit)

    def statistics(self) -> LimitStatistics:
        """Return the current statistics."""
        turns, aimd = self._turns, self._aimd
        return LimitStatistics(
            aimd.limit, turns.taken, turns.waiting, turns.waited, aimd.increases, aimd.decreases
        )

    def _read(self, read: Read) -> Buffer:
        turns = self._turns
        if not turns.take(time_left_s(_LONGEST_WAIT_S)):
            raise Unavailable(f"cannot read {read}: {turns.taken} earlier reads have no answer yet")
        try:
            began = self._clock()
            try:
                data = read.of(self._wrapped)
            except Unavailable:
                self._report(lambda now: self._aimd.failed(began, now))
                raise
            self._report(lambda now: self._aimd.succeeded(read.kind, began, now))
            return data
        finally:
            turns.give_back()

    def _report(self, tell: Callable[[float], None]) -> None:
        with self._lock:
            before = self._aimd.limit
            if self._turns.taken >= before:
                self._aimd.reached()
            tell(self._clock())
            after = self._aimd.limit
            if after != before:
                self._turns.set_limit(after)
