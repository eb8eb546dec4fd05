"""When the plans of running jobs use a segment next.

A plan tells an order, a position and a rate, so the time of each use is predicted. All plans are
merged into columns that are sorted by key: a segment's uses lie side by side, and a look-up is one
search among the few with its prefix. 12 to 16 bytes a use; `MAX_USES` bounds them. The times
themselves are computed at each question. A column of them would have to be computed again for all
segments with each publication, for the few about which somebody asks.

A plan may be wrong. Each request of its job is compared with it: a request far from the plan's
position, or of a segment that it does not have, counts against it. A plan with too many of these is
not trusted. If its job's requests agree about another position, that one counts.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.job_specifications import MAX_JOBS, JobSpecification, PlannedReads

_PLACE_BITS: Final = 22
_PLACE: Final = (1 << _PLACE_BITS) - 1
MAX_USES: Final = 1 << _PLACE_BITS
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
        score = self._score
        if score != expected:
            score = self._score = score + (expected - score) * _MEMORY
            self.is_trusted = score > (_DISTRUST if self.is_trusted else _TRUST)


class PlannedUses:
    """The uses of all plans, by key. Not thread-safe."""

    def __init__(self, plans: Iterable[FollowedPlan] = ()) -> None:
        """Merge the plans: 0.1 µs a use, at most `MAX_USES`."""
        self.plans = sorted(plans, key=lambda plan: plan.job)[:MAX_JOBS]
        self._of_job: dict[str, tuple[int, int]] = {}
        """Job -> the least use of its plans, and one that is greater than all of them."""
        for number, plan in enumerate(self.plans):
            first, _ = self._of_job.get(plan.job, (number << _PLACE_BITS, 0))
            self._of_job[plan.job] = first, (number + 1) << _PLACE_BITS
        self._last_key, self._last_rows = -1, (0, 0)
        """The last requested segment, about which the next question is."""
        kept, self.is_cut = _bounded(self.plans)
        keys = np.concatenate([np.empty(0, np.uint32), *kept])
        uses = np.concatenate([np.empty(0, np.uint32), *map(_uses, range(len(kept)), kept)])
        order = np.argsort(keys, kind="stable")
        # An element of an array costs a third of one of a numpy array; they share the memory.
        self._keys_array = array("I", keys[order].tobytes())
        self._uses_array = array("I", uses[order].tobytes())
        """Plan number << 22 | place: `MAX_JOBS` and `MAX_USES` fit into 32 bits together."""
        self._keys, self._uses = (
            np.frombuffer(column, np.uint32) for column in (self._keys_array, self._uses_array)
        )
        bits = len(keys).bit_length()
        self._shift = _KEY_BITS - bits
        edges = np.arange((1 << bits) + 1, dtype=np.uint64) << np.uint64(self._shift)
        self._begins = array("I", np.searchsorted(self._keys, edges).astype(np.uint32).tobytes())
        """The first row of the keys that begin with each prefix of `bits` bits, and their end."""

    def __len__(self) -> int:
        return len(self._keys_array)

    def rows(self, key: int) -> tuple[int, int]:
        """Return the first row of a segment's uses and the row after the last one. 0.25 µs.

        They are in the order of `plans`.
        """
        keys, low = self._keys_array, key & _LOW_BITS
        prefix = low >> self._shift
        first, end = self._begins[prefix], self._begins[prefix + 1]
        if first < end:  # most prefixes have one key
            if keys[first] != low:
                first = bisect_left(keys, low, first, end)
            if keys[end - 1] != low:
                end = bisect_right(keys, low, first, end)
        return first, end

    def next_use(self, key: int, enough: float = -math.inf) -> float:
        """Return the time of a segment's next use by a trusted plan; inf: there is none.

        The search ends with the first use that is sooner than `enough`. 0.2 µs and 0.13 µs a plan.

        After its use a segment is read in the next epoch, in another order: at a time that depends
        on the key alone. So what is kept of an epoch is the same from epoch to epoch.
        """
        row, end = self._last_rows if key == self._last_key else self.rows(key)
        plans, uses, soonest = self.plans, self._uses_array, math.inf
        while row < end:
            use = uses[row]
            row += 1
            plan, place = plans[use >> _PLACE_BITS], use & _PLACE
            if place >= plan.position:
                time = plan.begin_s + place * plan.seconds_per_key
            elif plan.repeats and plan.end_s < soonest:
                time = plan.end_s + spread(key) * (plan.end_s - plan.begin_s)
            else:
                continue
            if time < soonest and plan.is_trusted:
                soonest = time
                if time < enough:
                    break
        return soonest

    def coming(self, key: int) -> int:
        """Return how many uses of a segment by trusted plans are still to come."""
        row, end = self._last_rows if key == self._last_key else self.rows(key)
        count = 0
        for use in self._uses_array[row:end]:
            plan = self.plans[use >> _PLACE_BITS]
            count += plan.is_trusted and (plan.repeats or use & _PLACE >= plan.position)
        return count

    def requested(self, job: str, key: int) -> None:
        """Compare a request of a job with its plans. 0.6 µs.

        Of several readers of a job, the one that is nearest to the segment has sent the request.
        """
        row, end = self._last_rows = self.rows(key)
        self._last_key = key
        own = self._of_job.get(job)
        if own is None:
            return
        first, stop = own
        plans, uses = self.plans, self._uses_array
        if row < end and uses[row] < first:
            row = bisect_left(uses, first, row, end)
        if row == end or uses[row] >= stop:
            if not self.is_cut:  # the segment may be one of those that were cut off
                for plan in plans[first >> _PLACE_BITS : stop >> _PLACE_BITS]:
                    plan.note_request(None)
            return
        use = uses[row]
        nearest, at = plans[use >> _PLACE_BITS], use & _PLACE
        row += 1
        while row < end and uses[row] < stop:
            plan, place = plans[uses[row] >> _PLACE_BITS], uses[row] & _PLACE
            if abs(place - plan.position) < abs(at - nearest.position):
                nearest, at = plan, place
            row += 1
        nearest.note_request(at)

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
        begin, seconds, position, end, repeats = columns[self._uses[at] >> _PLACE_BITS].T
        places = self._uses[at] & _PLACE
        with np.errstate(invalid="ignore"):
            later = np.where(repeats > 0, end + _spread(keys) * (end - begin), np.inf)
        return np.where(places >= position, begin + places * seconds, later)


class FollowedPlans:
    """The plans of all readers that publish one. Not thread-safe."""

    def __init__(self) -> None:
        self._plans: dict[tuple[str, str], FollowedPlan] = {}
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
            self.uses = PlannedUses(self._plans.values())
            self._has_changed = False

    def is_trusted(self, specification: JobSpecification) -> bool:
        """Return whether a reader has a plan that is read as it says."""
        plan = self._plans.get((specification.job, specification.reader))
        return plan is not None and plan.is_trusted


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


def _uses(number: int, keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the uses of a plan, in its order."""
    return np.arange(len(keys), dtype=np.uint32) | np.uint32(number << _PLACE_BITS)
