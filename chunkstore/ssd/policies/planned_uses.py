"""When the plans of running jobs use a segment next.

A plan tells an order, a position and a rate, so the time of each use is predicted. All plans are
merged into columns that are sorted by key: a segment's uses lie side by side, and a look-up is one
search among the few with its prefix. 12 to 16 bytes a use; `MAX_USES` bounds them.

A plan may be wrong. Each request of its job is compared with it: a request far from the plan's
position, or of a segment that it does not have, counts against it. A plan with too many of these is
not trusted. If its job's requests agree about another position, that one counts.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.jobs import JobSpecification, PlannedReads

MAX_USES: Final = 1 << 22
"""Uses of all plans together, in 64 MiB; what is beyond counts as unknown."""
UNTOLD_EPOCH_S: Final = 3600.0
"""The time of an epoch of which no rate is known."""
_KEY_BITS: Final = 32
_LOW_BITS: Final = (1 << _KEY_BITS) - 1
_GOLDEN: Final = 0x9E3779B1
"""Odd, and 2^32 over the golden ratio: its multiples are spread evenly."""
_TOLERANCE: Final = 0.15
"""The distance from a plan's position, as a share of the plan, at which a request is expected."""
_SLACK: Final = 32
_ADVANCE: Final = 0.05
"""The share of a plan by which one request moves its position forward at most."""
_SEEN: Final = 16
_DISTRUST: Final = 0.6
_TRUST: Final = 0.8
_MEMORY: Final = 1 / 64


class FollowedPlan:
    """One reader's plan, as far as it is known to be read."""

    def __init__(self, job: str, reads: PlannedReads, at: float) -> None:
        self.job = job
        self.id = reads.id
        self.keys = reads.keys
        self.length = len(reads.keys)
        self._tolerance = _TOLERANCE * self.length + _SLACK
        self._most_advance = _ADVANCE * self.length + _SLACK
        self._score = 1.0
        self.is_trusted = True
        self._seen: deque[int] = deque(maxlen=_SEEN)
        """The places of the last requests since the last publication."""
        self.update(reads, at)

    def update(self, reads: PlannedReads, at: float) -> None:
        """Take over a later publication of the same plan."""
        rate = reads.keys_per_s
        if not (math.isfinite(rate) and rate > 0):
            rate = max(1, self.length) / UNTOLD_EPOCH_S
        self.seconds_per_key = 1 / rate
        self.position = self._observed(min(max(0, reads.position), self.length))
        self.begin_s = at - self.position * self.seconds_per_key
        """The time at which the plan's first segment would have been read at this rate."""
        self.repeats = reads.repeats
        self.end_s = self.begin_s + self.length * self.seconds_per_key

    def _observed(self, published: int) -> int:
        """Return the position by the requests since the last publication, if it is another one."""
        seen = sorted(self._seen)
        self._seen.clear()
        if len(seen) < _SEEN // 2:
            return published
        middle = seen[len(seen) // 2]
        is_close = abs(middle - published) <= self._most_advance
        return published if is_close else middle + 1

    def time_of(self, place: int, key: int) -> float:
        """Return the time of the next use of the segment at a place of the order.

        After its use it is read in the next epoch, in another order: at a time that depends on the
        key alone. So what is kept of an epoch is the same from epoch to epoch.
        """
        if place >= self.position:
            return self.begin_s + place * self.seconds_per_key
        if not self.repeats:
            return math.inf
        return self.end_s + spread(key) * (self.end_s - self.begin_s)

    def note_request(self, place: int | None) -> None:
        """Take note that its job has requested the segment at a place, or one that it lacks."""
        expected = 0.0
        if place is not None:
            self._seen.append(place)
            ahead = place - self.position
            if 0 <= ahead <= self._most_advance:
                self.position = place + 1
                expected = 1.0
            elif -self._tolerance <= ahead <= self._tolerance:
                expected = 1.0
        score = self._score = self._score + (expected - self._score) * _MEMORY
        self.is_trusted = score > (_DISTRUST if self.is_trusted else _TRUST)


class PlannedUses:
    """The uses of all plans, by key. Not thread-safe."""

    def __init__(self, plans: Sequence[FollowedPlan] = ()) -> None:
        """Merge the plans: 0.1 µs a use, at most `MAX_USES`."""
        self.plans = list(plans)
        kept, self.is_cut = _bounded(self.plans)
        keys = np.concatenate([np.empty(0, np.uint32), *kept])
        of_plan = np.repeat(np.arange(len(kept), dtype=np.uint32), [len(each) for each in kept])
        places = np.concatenate([np.empty(0, np.uint32), *map(_places, kept)])
        order = np.argsort(keys, kind="stable")
        # An element of an array costs a third of one of a numpy array; they share the memory.
        self._keys_array = array("I", keys[order].tobytes())
        self._plans_array = array("I", of_plan[order].tobytes())
        self._places_array = array("I", places[order].tobytes())
        self._keys, self._of_plan, self._places = (
            np.frombuffer(column, np.uint32)
            for column in (self._keys_array, self._plans_array, self._places_array)
        )
        bits = max(1, len(keys).bit_length() - 1)
        self._shift = _KEY_BITS - bits
        edges = np.arange((1 << bits) + 1, dtype=np.uint64) << np.uint64(self._shift)
        self._begins = array("I", np.searchsorted(self._keys, edges).astype(np.uint32).tobytes())
        """The first row of the keys that begin with each prefix of `bits` bits, and their end."""

    def __len__(self) -> int:
        return len(self._keys_array)

    def of(self, key: int) -> list[tuple[FollowedPlan, int]]:
        """Return the plans that use a segment, with its places. 0.4 µs and 0.2 µs a plan."""
        low = key & _LOW_BITS
        keys, prefix = self._keys_array, low >> self._shift
        end = self._begins[prefix + 1]
        at = bisect_left(keys, low, self._begins[prefix], end)
        found = []
        while at < end and keys[at] == low:
            found.append((self.plans[self._plans_array[at]], self._places_array[at]))
            at += 1
        return found

    def next_uses(self, keys: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the time of each segment's next use by a trusted plan; inf: there is none."""
        wanted = (np.array(keys, np.uint64) & np.uint64(_LOW_BITS)).astype(np.uint32)
        result = np.full(len(wanted), np.inf)
        if not len(self._keys) or not len(wanted):
            return result
        first = np.searchsorted(self._keys, wanted, "left")
        count = np.searchsorted(self._keys, wanted, "right") - first
        rows = np.repeat(np.arange(len(wanted)), count)
        if len(rows):
            begins = np.cumsum(count) - count
            at = np.arange(len(rows)) - np.repeat(begins - first, count)
            np.minimum.at(result, rows, self._times(at, wanted[rows]))
        return result

    def _times(
        self, at: npt.NDArray[np.int64], keys: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.float64]:
        columns = np.array(
            [
                (plan.begin_s, plan.seconds_per_key, plan.position, plan.end_s, plan.repeats)
                if plan.is_trusted
                else (math.inf, 0.0, 0.0, math.inf, 0.0)
                for plan in self.plans
            ]
        )
        begin, seconds, position, end, repeats = columns[self._of_plan[at]].T
        places = self._places[at]
        with np.errstate(invalid="ignore"):
            later = np.where(repeats > 0, end + _spread(keys) * (end - begin), np.inf)
        return np.where(places >= position, begin + places * seconds, later)


class FollowedPlans:
    """The plans of all readers that publish one. Not thread-safe."""

    def __init__(self) -> None:
        self._plans: dict[tuple[str, str], FollowedPlan] = {}
        self._of_job: dict[str, list[FollowedPlan]] = {}
        self._has_changed = False
        self.uses = PlannedUses()

    def publish(self, specification: JobSpecification, at: float) -> None:
        """Take over a reader's position, or its new plan, which counts from `merge` on."""
        reads, reader = specification.plan, (specification.job, specification.reader)
        if reads is None:
            self._has_changed |= self._plans.pop(reader, None) is not None
            return
        known = self._plans.get(reader)
        if known is not None and known.id == reads.id and known.keys is reads.keys:
            known.update(reads, at)
            return
        if known is not None and known.id == reads.id and np.array_equal(known.keys, reads.keys):
            known.keys = reads.keys
            known.update(reads, at)
            return
        self._plans[reader] = FollowedPlan(specification.job, reads, at)
        self._has_changed = True

    def merge(self, alive: Iterable[JobSpecification]) -> None:
        """Forget the plans of other readers, and merge the others if there are new ones."""
        readers = {(each.job, each.reader) for each in alive}
        gone = self._plans.keys() - readers
        for reader in gone:
            del self._plans[reader]
        if gone or self._has_changed:
            self.uses = PlannedUses(list(self._plans.values()))
            self._of_job = {}
            for plan in self._plans.values():
                self._of_job.setdefault(plan.job, []).append(plan)
            self._has_changed = False

    def is_trusted(self, specification: JobSpecification) -> bool:
        """Return whether a reader has a plan that is read as it says."""
        plan = self._plans.get((specification.job, specification.reader))
        return plan is not None and plan.is_trusted

    def requested(self, job: str, uses: Sequence[tuple[FollowedPlan, int]]) -> None:
        """Compare a request of a job with its plans; `uses` are those of the segment."""
        own = self._of_job.get(job)
        if own is None:
            return
        nearest, at, distance = None, 0, _LOW_BITS
        for plan, place in uses:
            # Of several readers of a job, the nearest one has sent the request.
            if plan.job == job and abs(place - plan.position) < distance:
                nearest, at, distance = plan, place, abs(place - plan.position)
        if nearest is not None:
            nearest.note_request(at)
        else:
            for plan in own:
                plan.note_request(None)


def spread(key: int) -> float:
    """Return a number in [0, 1) that depends on the key's low 32 bits alone."""
    return (((key & _LOW_BITS) * _GOLDEN) & _LOW_BITS) / (1 << 32)


def _spread(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    mixed = (keys.astype(np.uint64) * np.uint64(_GOLDEN)) & np.uint64(_LOW_BITS)
    return mixed.astype(np.float64) / (1 << 32)


def _bounded(plans: Sequence[FollowedPlan]) -> tuple[list[npt.NDArray[np.uint32]], bool]:
    """Return the keys of the plans, each cut to an equal share if they are too many."""
    total = sum(plan.length for plan in plans)
    if total <= MAX_USES:
        return [plan.keys for plan in plans], False
    share = MAX_USES // len(plans)
    return [plan.keys[:share] for plan in plans], True


def _places(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return np.arange(len(keys), dtype=np.uint32)
