"""A wrapper that sends a late read a second time and takes the first answer.

The method is that of Dean & Barroso, "The Tail at Scale", 2013, and Meta's remedy for laggards.
With 1% of the reads 50 times slower, the 95th percentile would send 5% twice, most of which would
have been answered anyway. So a read is late after the 98th percentile of its kind, and never before
1.25 times the median. If latencies are even, only the slow reads are late, after 1.25 medians, and
have their second answer after 2.25. If latencies vary much, 2% are late, which the budget of 2.5%
covers. The budget (`hedge_budget`) prevents a store that is slow everywhere from getting twice the
work.

The first request of a late read continues on its own, in a thread for which no caller waits.
`DeadlineStore` starts requests and waits for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from chunkstore.call_threads import Answers
from chunkstore.errors import Unavailable
from chunkstore.stores.deadline import DeadlineStore
from chunkstore.stores.hedge_budget import HedgeBudget
from chunkstore.stores.latencies import Latencies
from chunkstore.stores.object_store import Buffer
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """The rules for late reads and for the budget of second requests."""

    quantile: float = 0.98
    """The quantile of the latencies of its kind after which a read is late."""
    median_multiple: float = 1.25
    """The multiple of the median before which a read is not late."""
    shortest_s: float = 0.002
    """Seconds before which a read is not late.

    Waking up two threads takes up to that long on a busy machine.
    """
    extra_share: float = 0.025
    """The largest share of reads that is sent twice, in the long run."""
    burst: float = 8.0
    """The most second requests in a burst."""
    enough: int = 64
    """Reads of a kind that must have been seen before a read of that kind can be late."""


@dataclass(frozen=True, slots=True)
class HedgeStatistics:
    """Counts of one `HedgingStore`."""

    reads: int = 0
    hedges: int = 0
    """Second requests sent."""
    won: int = 0
    """Second requests that were answered first."""
    refused: int = 0
    """Late reads that were not sent again, because the budget was spent."""


class HedgingStore(ReadWrapper):
    """A wrapper that hedges `get` and `get_range`, and passes on the other calls."""

    def __init__(
        self,
        store: DeadlineStore,
        policy: HedgePolicy | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(store)
        self._store = store
        self._policy = policy or HedgePolicy()
        self._clock = clock
        self._lock = threading.Lock()
        self._latencies = Latencies(self._policy.quantile, self._policy.enough)
        self._budget = HedgeBudget(self._policy.extra_share, self._policy.burst)
        self._reads = self._hedges = self._won = self._refused = 0

    def statistics(self) -> HedgeStatistics:
        """Return the current counts."""
        with self._lock:
            return HedgeStatistics(self._reads, self._hedges, self._won, self._refused)

    def _read(self, read: Read) -> Buffer:
        answers: Answers[Buffer] = SimpleQueue()
        time_left_s = self._store.time_left_s()
        late_after_s = self._count_read(read)
        self._begin(read, answers, 0)
        if late_after_s is None or late_after_s >= time_left_s:
            return self._store.answer(answers, time_left_s, read).result()
        try:
            return answers.get(timeout=late_after_s).result()
        except Empty:
            pass
        time_left_s -= late_after_s
        hedged = self._take_token() and self._begin_again(read, answers)
        answer = self._store.answer(answers, time_left_s, read)
        if hedged and isinstance(answer.error, Unavailable):
            answer = self._store.answer(answers, time_left_s, read)
        if hedged:
            with self._lock:
                self._won += answer.call
                self._budget.learn(won=bool(answer.call))
        return answer.result()

    def _begin(self, read: Read, answers: Answers[Buffer], call: int) -> None:
        begin = self._clock()

        def observe() -> None:
            seconds = self._clock() - begin
            with self._lock:
                self._latencies.observe(read.kind, seconds)

        self._store.begin(read, answers, call, observe)

    def _begin_again(self, read: Read, answers: Answers[Buffer]) -> bool:
        try:
            self._begin(read, answers, 1)
        except Unavailable:  # no thread is free, but the first request may still be answered
            return False
        with self._lock:
            self._hedges += 1
        return True

    def _count_read(self, read: Read) -> float | None:
        """Count a read and add its share to the budget.

        Return the seconds after which the read is late, or None if that is not known yet.
        """
        policy = self._policy
        with self._lock:
            self._reads += 1
            self._budget.earn()
            usual = self._latencies.usual_s(read.kind)
        if usual is None:
            return None
        median_s, quantile_s = usual
        return max(quantile_s, policy.median_multiple * median_s, policy.shortest_s)

    def _take_token(self) -> bool:
        with self._lock:
            granted = self._budget.spend()
            self._refused += not granted
        return granted
