"""The remote IO that the store really gives, estimated from what readers use and wait for.

A store that gives less than it was said to shows in jobs that wait for it: they stay below what
they are allowed, though their budgets do not bind. Without a smaller total, the jobs that fetch
most would then take from the others. While the store is slow, the total is what all jobs together
get. It is raised by growing steps, until jobs wait for the store again or all is as it was said.

A job that is slow by itself, as with one read at a time, looks the same. So jobs that are held back
by their budgets count against it: they show that the store could give more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dieselfs.allocation.directory.reader_lease import ReaderLease

SEEN_AFTER_S: Final = 8.0
"""The time for which jobs must wait for the store: their own figures are means of 5 s."""
RAISED_EVERY_S: Final = 6.0
"""The time between two steps up: what a step brings shows in the figures by then."""
KEPT_S: Final = 20.0
"""The time for which a rate that was lowered is kept at least."""
_STEP: Final = 0.1
"""The first step up, as a share; each is twice the one before. From a half to the whole it takes 4
steps."""
_WAITS: Final = 0.1
"""The share of its time for which a reader waits, from which it waits for the store."""
_REACHED: Final = 0.9
"""A reader reaches what it is allowed from this share of it on."""
_LACKING: Final = 0.1
"""The share of what readers are allowed that they must lack for the store to count as slow."""
_OUTWEIGHED: Final = 0.5
"""The weight of the readers that are held back by their budgets, against those that wait for the
store, from which the store is not slow."""
LEAST_BYTES_PER_S: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Demand:
    """The rates that readers get of the store, and lack, in bytes a second."""

    used: float
    """The use of all readers."""
    starved: float
    """The rates allowed to those that wait for the store."""
    lacked: float
    """The part of it that they do not reach."""
    held_back: float
    """The rates allowed to those that wait for their budgets."""

    @property
    def is_unmet(self) -> bool:
        """True if the store gives less than it would have to."""
        lacks = self.lacked > _LACKING * (self.used + self.lacked)
        return lacks and self.held_back < _OUTWEIGHED * self.starved


class StoreRate:
    """The rate of the store, as far as it is below what was said. One thread uses it."""

    def __init__(self) -> None:
        self._given = math.inf
        self._met_at: float | None = None
        """The last time at which the store gave what was asked for."""
        self._changed_at = -math.inf
        self._kept_until = -math.inf
        self._step = _STEP

    def note(self, leases: Iterable[ReaderLease], promised_bytes_per_s: float, now: float) -> float:
        """Return the bytes a second to divide; call it about once a second.

        It is `promised_bytes_per_s`, or less while the store is slow.
        """
        demand = _demand(leases)
        if self._met_at is None or not demand.is_unmet:
            self._met_at = now
        is_settled = now - self._changed_at >= SEEN_AFTER_S
        if now - self._met_at >= SEEN_AFTER_S and is_settled:
            self._lower(demand.used, promised_bytes_per_s, now)
        elif self._met_at == now and now >= self._kept_until:
            self._raise(promised_bytes_per_s, now)
        return min(self._given, promised_bytes_per_s)

    def _lower(self, used: float, promised: float, now: float) -> None:
        given = max(used, min(float(LEAST_BYTES_PER_S), promised))
        if given < min(self._given, promised):
            self._given, self._changed_at, self._step = given, now, _STEP
            self._kept_until = now + KEPT_S

    def _raise(self, promised: float, now: float) -> None:
        if self._given < promised:
            self._given, self._changed_at = self._given * (1.0 + self._step), now
            self._step, self._kept_until = 2 * self._step, now + RAISED_EVERY_S
        if self._given >= promised:
            self._given = math.inf


def _demand(leases: Iterable[ReaderLease]) -> _Demand:
    used = starved = lacked = held_back = 0.0
    for lease in leases:
        used += lease.used_bytes_per_s
        allowed = lease.allowed_bytes_per_s
        if allowed < 0:  # it has no limit, so nothing says what it should get
            continue
        if lease.bound > _WAITS:
            held_back += allowed
        elif lease.starved > _WAITS and lease.used_bytes_per_s < _REACHED * allowed:
            starved += allowed
            lacked += allowed - lease.used_bytes_per_s
    return _Demand(used, starved, lacked, held_back)
