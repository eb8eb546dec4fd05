"""A rule for the number of calls in flight, by errors and latency. Pure: time is an argument.

Reads and uploads follow it, each with a limit of its own; "read" below means either.

The rule is additive increase, multiplicative decrease (Chiu & Jain, 1989). Reads are evaluated in
rounds: as many of one kind as may be in flight, at least 16. A round's median latency is compared
to the kind's latency at half the load. If it is well above, reads wait for each other inside the
store, and the limit is cut; if not, the limit grows by one (twofold until it is first cut). A round
in which the limit was not reached changes nothing: the limit did not make it slow. `Unavailable`
halves the limit. Reads that began before a change say nothing about its effect. A store that
throttles for half a minute cuts the limit to the lowest; when eight reads in a row have succeeded
again, the limit doubles, up to half of what it was before the failures (slow start: Jacobson,
"Congestion Avoidance and Control", 1988).

The latency at half the load is measured again every ten seconds, in one round at half the limit
(which costs half a round), so that a permanent change of the store is not mistaken for overload. If
half the reads in flight take half as long, the other half only waited: on a disk with one queue the
limit stays at the first 8, or falls to 16, which keep it busy; at a store that serves all reads at
once it stays at the highest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from chunkstore.stores.read import ReadKind

_KINDS: Final = 64


@dataclass(frozen=True, slots=True)
class LimitPolicy:
    """The bounds and factors of the limit."""

    lowest: int = 2
    lowest_by_latency: int = 16
    """The lowest limit by latency; errors may cut the limit further.

    The work of a reader between two reads, and its wait in the line, are hidden by other reads in
    flight. Measured with 16 readers of a gateway that is bound by two cores: limited to 3 to 8, as
    latency alone would set it, the rate was 0.89 to 0.93 of that of a library without a limit; with
    16 it was 0.98.
    """
    highest: int = 64
    first: int = 8
    round_reads: int = 16
    """The fewest reads in a round; the median of fewer is too uncertain."""
    latency_ratio: float = 1.8
    """The ratio of a round's median to that at half the load above which the limit is cut.

    One queue doubles the latency. In simulation, a store that serves all reads at once, with
    latencies that vary by 80%, is used to 60-99%, and to 67% with a ratio of 1.6; it is used to
    25-50% if the comparison is with the lowest of all rounds.
    """
    cut_on_latency: float = 0.75
    cut_on_error: float = 0.5
    recovery_reads: int = 8
    """The answers in a row after which a limit that errors have cut doubles.

    While a store goes on throttling, at most one call in nine is thus refused for an increase.
    """
    measure_every_s: float = 10.0
    first_pause_s: float = 0.05
    """The pause of all uploads after a failure; it doubles with each further one.

    Without it every upload would find out by itself that the store throttles, and all would be in
    long pauses when it no longer does.
    """
    longest_pause_s: float = 1.0

    def times(self, processes: int) -> LimitPolicy:
        """Return the policy of a limit that so many processes share."""
        return replace(
            self,
            lowest_by_latency=self.lowest_by_latency * processes,
            highest=self.highest * processes,
            first=self.first * processes,
        )


UPLOADS: Final = LimitPolicy(lowest_by_latency=8, highest=16)
"""The policy of uploads, for each process.

It begins with 8: a store in a cloud gives each upload some 50 MB/s. Latency alone does not cut it
below that, and 64 MiB in flight have room for no more than 16 chunks.
"""


class Aimd:
    """The limit, moved by the reports of reads. Not thread-safe."""

    def __init__(self, policy: LimitPolicy) -> None:
        self._policy = policy
        self.increases = self.decreases = 0
        self.failures = 0
        """Reads to which the store was unavailable."""
        self.least = policy.first
        """The lowest limit that errors have set."""
        self.answered_at = float("-inf")
        self.not_before = float("-inf")
        """The time before which no upload begins."""
        self.last_failure = ""
        self._pause_s = policy.first_pause_s
        self._recover_to = self._in_a_row = 0
        self._limit = policy.first
        self._since = float("-inf")
        self._measured_at = float("-inf")
        self._measuring = False
        self._doubling = True
        self._reached = False
        self._rounds: dict[ReadKind, list[float]] = {}
        self._at_half_load_s: dict[ReadKind, float] = {}

    @property
    def limit(self) -> int:
        """The current limit; it is lower while a round measures at half the load."""
        if self._measuring:
            return max(self._policy.lowest, self._limit // 2)
        return self._limit

    def reached(self) -> None:
        """Record that as many reads as allowed are in flight, and that more may be waiting."""
        self._reached = True

    def succeeded(self, kind: ReadKind, began: float, now: float) -> None:
        """Record the latency of a read."""
        self.answered_at = now
        self._pause_s = max(self._policy.first_pause_s, self._pause_s / 2)
        if began < self._since:
            return
        if self._limit < self._recover_to:
            self._recover()
            return
        if len(self._rounds) >= _KINDS and kind not in self._rounds:
            self._rounds.clear()
            self._at_half_load_s.clear()
        latencies = self._rounds.setdefault(kind, [])
        latencies.append(now - began)
        if len(latencies) >= max(self._policy.round_reads, self.limit):
            median_s = sorted(latencies)[len(latencies) // 2]
            latencies.clear()
            self._end_round(kind, median_s, now)

    def failed(self, began: float, now: float, reason: str = "") -> None:
        """Record that the store was unavailable to a read; concurrent reads count once."""
        self.failures += 1
        self._in_a_row = 0
        self.last_failure = reason
        if began >= self._since:
            self.not_before = now + self._pause_s
            self._pause_s = min(self._policy.longest_pause_s, 2 * self._pause_s)
            if self._limit > self._recover_to:
                self._recover_to = int(self._limit * self._policy.cut_on_error)
            self._cut(self._policy.cut_on_error, self._policy.lowest, now)
            self.least = min(self.least, self._limit)

    def _end_round(self, kind: ReadKind, median_s: float, now: float) -> None:
        at_half_load_s = self._at_half_load_s.get(kind)
        if self._measuring or at_half_load_s is None:
            self._at_half_load_s[kind] = median_s
            if self._measuring:
                self._measuring = False
                self._begin_rounds(now)
        elif self._reached and median_s > self._policy.latency_ratio * at_half_load_s:
            self._cut(self._policy.cut_on_latency, self._policy.lowest_by_latency, now)
        elif self._reached:
            self._grow()
        if self._reached and now - self._measured_at >= self._policy.measure_every_s:
            self._measure(now)
        self._reached = False

    def _recover(self) -> None:
        self._in_a_row += 1
        if self._in_a_row >= self._policy.recovery_reads and self._reached:
            self._in_a_row = 0
            self._reached = False
            self._limit = min(self._recover_to, 2 * self._limit)
            self.increases += 1

    def _grow(self) -> None:
        more = 2 * self._limit if self._doubling else self._limit + 1
        more = min(self._policy.highest, more)
        self.increases += more > self._limit
        self._limit = more

    def _cut(self, factor: float, lowest: int, now: float) -> None:
        less = min(self._limit, max(lowest, int(self._limit * factor)))
        self.decreases += less < self._limit
        self._limit = less
        self._doubling = False
        self._begin_rounds(now)

    def _measure(self, now: float) -> None:
        self._measured_at = now
        self._measuring = True
        self._at_half_load_s.clear()
        self._begin_rounds(now)

    def _begin_rounds(self, now: float) -> None:
        self._since = now
        self._rounds.clear()
