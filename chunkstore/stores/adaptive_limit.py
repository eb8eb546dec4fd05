"""A wrapper that bounds the calls in flight by what the store answers well.

The limit follows latency and errors (`aimd`), and callers take turns in order (`turns`). Reads have
one limit and uploads (`create`) have another. The limit counts calls, not requests: a hedge and the
late request that it overtook belong to one read, whose place is free when it is answered. So a slow
object blocks no other read, and only the budget of hedges bounds the abandoned requests at the
store.

Forked processes that upload together share one limit (`shared_limit`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from chunkstore.errors import Unavailable
from chunkstore.stores.aimd import UPLOADS, Aimd, LimitPolicy
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read, ReadKind
from chunkstore.stores.read_wrapper import ReadWrapper
from chunkstore.stores.time_left import lengthen_operation, time_left_s
from chunkstore.stores.turns import Turns

T = TypeVar("T")
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class LimitStatistics:
    """The limit, the queue and the counts of one limit."""

    limit: int = 0
    """Calls that may be in flight now."""
    in_flight: int = 0
    """Calls in flight now, of this process."""
    waiting: int = 0
    """Calls of this process that wait for their turn now."""
    waited: int = 0
    """Calls of this process that had to wait for their turn."""
    increases: int = 0
    decreases: int = 0
    failures: int = 0
    """Calls to which the store was unavailable; they are repeated unless the patience is over."""
    least: int = 0
    """The lowest limit that such calls have set."""
    last_failure: str = ""
    """The reason of the last of them."""


class CallLimit(Protocol):
    """A limit of calls in flight, moved by their reports. Thread-safe."""

    def take(self, timeout_s: float) -> bool:
        """Wait for a turn, which `give_back` ends; return False if none came in time."""
        ...

    def give_back(self) -> None:
        """End a turn."""
        ...

    def report(self, tell: Callable[[Aimd], None]) -> None:
        """Call `tell` with the rule, for one outcome."""
        ...

    def times(self) -> tuple[float, float]:
        """Return the time of the last answer, and that before which no upload begins."""
        ...

    def statistics(self) -> LimitStatistics:
        """Return the current statistics."""
        ...


class OwnLimit:
    """The `CallLimit` of one process."""

    def __init__(self, policy: LimitPolicy) -> None:
        self._lock = threading.Lock()
        self._aimd = Aimd(policy)
        self._turns = Turns(self._aimd.limit)

    def take(self, timeout_s: float) -> bool:
        """Wait for a turn, first come, first served."""
        return self._turns.take(timeout_s)

    def give_back(self) -> None:
        """End a turn, and admit the next caller."""
        self._turns.give_back()

    def report(self, tell: Callable[[Aimd], None]) -> None:
        """Call `tell`, and apply the limit that follows."""
        aimd = self._aimd
        with self._lock:
            before = aimd.limit
            if self._turns.taken >= before:
                aimd.reached()
            tell(aimd)
            after = aimd.limit
            if after != before:
                self._turns.set_limit(after)

    def times(self) -> tuple[float, float]:
        """Return the time of the last answer, and that before which no upload begins."""
        return self._aimd.answered_at, self._aimd.not_before

    def statistics(self) -> LimitStatistics:
        """Return the current statistics."""
        turns = self._turns
        return statistics_of(self._aimd, turns.taken, turns.waiting, turns.waited)


def statistics_of(aimd: Aimd, in_flight: int, waiting: int, waited: int) -> LimitStatistics:
    """Return the statistics of a limit and its queue."""
    return LimitStatistics(
        *(aimd.limit, in_flight, waiting, waited, aimd.increases, aimd.decreases),
        *(aimd.failures, aimd.least, aimd.last_failure),
    )


class LimitedStore(ReadWrapper):
    """A wrapper that limits `get`, `get_range` and `create`, and passes on the other calls."""

    def __init__(
        self,
        store: ObjectStore,
        policy: LimitPolicy | None = None,
        uploads: CallLimit | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(store)
        self._clock = clock
        self._reads = OwnLimit(policy or LimitPolicy())
        self._uploads = uploads or OwnLimit(UPLOADS)

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create an object when the turn has come.

        The wait for the turn counts against the operation's time only since the store's last
        answer to an upload: a store that throttles, and goes on answering, is waited for.
        """
        self._wait_to_upload(key)
        kind = Read(key).kind
        self._in_turn(self._uploads, kind, lambda: self._wrapped.create(key, parts))

    def statistics(self) -> LimitStatistics:
        """Return the current statistics of reads."""
        return self._reads.statistics()

    def upload_statistics(self) -> LimitStatistics:
        """Return the current statistics of uploads."""
        return self._uploads.statistics()

    def _read(self, read: Read) -> Buffer:
        if not self._reads.take(time_left_s(_LONGEST_WAIT_S)):
            in_flight = self._reads.statistics().in_flight
            raise Unavailable(f"cannot read {read}: {in_flight} earlier reads have no answer yet")
        return self._in_turn(self._reads, read.kind, lambda: read.of(self._wrapped))

    def _wait_to_upload(self, key: str) -> None:
        """Wait for the turn, and then, with its place, until the pause after a failure is over."""
        limit, since = self._uploads, self._clock()
        while True:
            taken = limit.take(time_left_s(_LONGEST_WAIT_S))
            answered_s = limit.times()[0] - since
            if answered_s > 0:
                lengthen_operation(answered_s)
                since += answered_s
            if taken:
                break
            if answered_s <= 0:
                reason = limit.statistics().last_failure or "earlier uploads have no answer yet"
                raise Unavailable(reason if key in reason else f"cannot create {key}: {reason}")
        while (pause_s := time_left_s(limit.times()[1] - self._clock())) > 0:
            time.sleep(pause_s)

    def _in_turn(self, limit: CallLimit, kind: ReadKind, act: Callable[[], T]) -> T:
        """Call the store in a turn that was taken, report the outcome, and end the turn."""
        try:
            began = self._clock()
            try:
                result = act()
            except Unavailable as error:
                reason = str(error)
                limit.report(lambda aimd: aimd.failed(began, self._clock(), reason))
                raise
            limit.report(lambda aimd: aimd.succeeded(kind, began, self._clock()))
            return result
        finally:
            limit.give_back()
