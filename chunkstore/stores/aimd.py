"""How many reads may be in flight: additive increase, multiplicative decrease (Chiu & Jain, 1989), by errors and by latency. Pure: the time is given.

Reads are looked at in rounds: as many of one kind as may be in flight, at least 16. A round's median latency is compared to the lowest of its kind. If
it is well above, reads wait for each other inside the store, and the limit is cut; if not, and the limit was reached, it grows by one (twofold
until it is first cut). `Unavailable` halves it. Reads that began before a change say nothing about what came of it.

The lowest latency must be one without a queue, and be forgotten when the store changes for good. So now and then one round runs at half the limit
and is the measure from then on: if half the reads in flight take half as long, the other half only waited. On a disk with one queue the limit
so comes down to 2 or 3, which keeps it busy; a store that serves all at once is left at the maximum. It costs half a round in ten seconds.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

from chunkstore.stores.read import ReadKind

_KINDS: Final = 64


@dataclass(frozen=True, slots=True)
class LimitPolicy:
    lowest: int = 2
    highest: int = 64
    first: int = 8
    round_reads: int = 16
    """The median of fewer is too uncertain."""
    latency_ratio: float = 1.5
    """Of a round's median to the lowest: above it the limit is cut. A queue doubles it when the limit doubles; medians of 16 vary by a fifth."""
    cut_on_latency: float = 0.75
    cut_on_error: float = 0.5
    measure_every_s: float = 10.0


class Aimd:
    """The limit, moved by what reads report. Not thread-safe."""

    def __init__(self, policy: LimitPolicy) -> None:
        self._policy = policy
        self.increases = self.decreases = 0
        self._limit = policy.first
        self._since = float("-inf")
        self._measured_at = float("-inf")
        self._measuring = False
        self._doubling = True
        self._reached = False
        self._rounds: dict[ReadKind, list[float]] = {}
        self._lowest_s: dict[ReadKind, float] = {}

    @property
    def limit(self) -> int:
        """As of now; lower while a round is measured."""
        if self._measuring:
            return max(self._policy.lowest, self._limit // 2)
        return self._limit

    def reached(self) -> None:
        """As many reads are in flight as may be: more would be, if they might."""
        self._reached = True

    def succeeded(self, kind: ReadKind, began: float, now: float) -> None:
        if began < self._since:
            return
        if len(self._rounds) >= _KINDS and kind not in self._rounds:
            self._rounds.clear()
            self._lowest_s.clear()
        latencies = self._rounds.setdefault(kind, [])
        latencies.append(now - began)
        if len(latencies) >= max(self._policy.round_reads, self.limit):
            median_s = statistics.median(latencies)
            latencies.clear()
            self._end_round(kind, median_s, now)

    def failed(self, began: float, now: float) -> None:
        """The store was unavailable to a read. Those in flight at the same time count once."""
        if began >= self._since:
            self._cut(self._policy.cut_on_error, now)

    def _end_round(self, kind: ReadKind, median_s: float, now: float) -> None:
        lowest_s = self._lowest_s.get(kind)
        if self._measuring or lowest_s is None:
            self._lowest_s[kind] = median_s
            if self._measuring:
                self._measuring = False
                self._begin_rounds(now)
        elif median_s > self._policy.latency_ratio * lowest_s:
            self._cut(self._policy.cut_on_latency, now)
        else:
            self._lowest_s[kind] = min(lowest_s, median_s)
            if self._reached:
                self._grow()
        self._reached = False
        if now - self._measured_at >= self._policy.measure_every_s:
            self._measure(now)

    def _grow(self) -> None:
        more = 2 * self._limit if self._doubling else self._limit + 1
        more = min(self._policy.highest, more)
        self.increases += more > self._limit
        self._limit = more

    def _cut(self, factor: float, now: float) -> None:
        less = max(self._policy.lowest, int(self._limit * factor))
        self.decreases += less < self._limit
        self._limit = less
        self._doubling = False
        self._begin_rounds(now)

    def _measure(self, now: float) -> None:
        self._measured_at = now
        self._measuring = True
        self._lowest_s.clear()
        self._begin_rounds(now)

    def _begin_rounds(self, now: float) -> None:
        self._since = now
        self._rounds.clear()
