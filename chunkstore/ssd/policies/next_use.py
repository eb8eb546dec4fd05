"""*next-use*: a policy that keeps what running jobs read soonest, by their published orders.

It approaches Belady's optimum with bypass: a missed segment is admitted if it is used sooner than
what would be evicted for it. It falls back by degrees. A job that tells its order counts with the
time of each use. One that tells only its buckets counts like *future*, with uses that are spread
over an hour. If no plan is known, the policy is *future*. If no job has published anything, it is
*historic*, and admits everything where that knows of nothing that is worth more than the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.elapsed import Elapsed
from chunkstore.ssd.policies.job_specifications import JobSpecification, PublishedJobs
from chunkstore.ssd.policies.planned_uses import (
    UNTOLD_EPOCH_S,
    FollowedPlans,
    spread,
)
from chunkstore.ssd.policies.policy import REFRESH_S
from chunkstore.ssd.policies.priority import Priorities, future, historic
from chunkstore.ssd.policies.request_history import RequestHistory
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policies.threshold_policy import MINIMUM, ThresholdPolicy
from chunkstore.ssd.policies.write_budget import ThresholdController, WriteAllowance

_KEY_MASK: Final = 0xFFFF
_REINSERTED_SHARE: Final = 0.5
"""An evicted segment is written again if it is used in half the time of what is evicted next.

If all that are used sooner were, segments that are due would evict each other: up to 3 bytes were
written for each byte that was fetched, with regions, and up to 28 without.
"""
_REMEMBERED: Final = 1 << 18
"""Admitted segments of no plan whose buckets are remembered, in 40 MiB at most."""


class NextUsePolicy:
    """A policy that admits and keeps what is used soonest."""

    fetches_rejected = False

    def __init__(
        self,
        *,
        minimum: float = MINIMUM,
        write_budget: float | None = None,
        reinsertion_offset: float | None = None,
        history: RequestHistory | None = None,
    ) -> None:
        """The settings are those of `ThresholdPolicy`, which takes over where no plan is known.

        While plans are known, what is used much sooner than what is evicted next is reinserted,
        whatever the offset is: otherwise a region would take such segments along.
        """
        self._history = history or RequestHistory()
        self._simpler = ThresholdPolicy(
            "historic",
            minimum=minimum,
            write_budget=write_budget,
            reinsertion_offset=reinsertion_offset,
            history=self._history,
        )
        self._minimum = minimum
        self._jobs = PublishedJobs()
        self._elapsed_s = self._history.elapsed_s
        self._elapsed = Elapsed(self._elapsed_s)
        self._now = 0.0
        """The time of the last refresh, as the caller gives it."""
        self._plans = FollowedPlans()
        self._follows = False
        """True if at least one plan is trusted."""
        self._planned: frozenset[Bucket] = frozenset()
        self._coming: Priorities = {}
        self._past: Priorities = {}
        self._buckets: dict[int, Bucket] = {}
        self._evicts_next: float | None = None
        self._limit = math.inf
        """The time before which a segment must be used to be admitted."""
        self._threshold = 0.0
        self._wanted_bytes = 0
        self._controller: ThresholdController | None = None
        self._allowance: WriteAllowance | None = None
        if write_budget is not None:
            self._controller = ThresholdController(write_budget, 0.0)
            self._allowance = WriteAllowance(write_budget)

    @property
    def priorities(self) -> Priorities:
        """The priorities of the simpler policy, for explanations."""
        return self._simpler.priorities

    @property
    def admit_threshold(self) -> float:
        """The simpler policy's threshold."""
        return self._simpler.admit_threshold

    def requested(self, job: str, bucket: Bucket, key: int, length: int) -> None:
        """Add the request to the history, and compare it with the plans of its job."""
        self._history.add(job, bucket, key, length)
        self._plans.uses.requested(job, key)

    def admits(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return whether the segment is used sooner than what would be evicted for it."""
        if not self._follows:
            return self._simpler.admits(bucket, key, length) or self._knows_nothing()
        soonest = self._plans.uses.next_use(key, self._limit)
        if soonest == math.inf:
            soonest = self._untold_use(bucket, key)
        if soonest >= self._limit and self._evicts_next is not None:
            return False
        return self._allowance is None or self._may_write(key, soonest, length)

    def reinserts(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return whether an evicted segment is used much sooner than what is evicted next."""
        if not self._follows:
            return self._simpler.reinserts(bucket, key, length)
        if self._evicts_next is None:
            return False
        soonest = self._plans.uses.next_use(key)
        if soonest == math.inf:
            soonest = self._untold_use(bucket, key)
        gap_s = max(REFRESH_S, soonest - self._now)
        is_worth_it = gap_s < _REINSERTED_SHARE * (self._evicts_next - self._now)
        return is_worth_it and self._may_write(key, soonest, length)

    def next_uses(self, keys: Sequence[int]) -> npt.NDArray[np.float64] | None:
        """Return the time of each segment's next use; None while no plan is trusted."""
        if not self._follows:
            return None
        found = self._plans.uses.next_uses(keys)
        if self._buckets:
            for at in np.flatnonzero(np.isinf(found)).tolist():
                bucket = self._buckets.get(keys[at])
                if bucket is not None:
                    found[at] = self._untold(bucket, keys[at])
        return found

    def evicts_next(self, next_use: float | None) -> None:
        """Take note of what would be evicted next."""
        self._evicts_next = next_use
        self._limit = math.inf if next_use is None else next_use

    def written(self, length: int) -> None:
        """Take the bytes from the write allowances."""
        self._simpler.written(length)
        if self._allowance is not None:
            self._allowance.take(length)

    def publish(self, specification: JobSpecification, now: float) -> None:
        """Record the reader's specification until its lease ends."""
        self._jobs.publish(specification, self._elapsed.at(now))
        self._simpler.publish(specification, now)
        self._plans.publish(specification, now)

    def refresh(self, now: float) -> None:
        """Merge new plans, and sort the jobs by what they tell."""
        before, self._elapsed_s, self._now = self._elapsed_s, self._elapsed.at(now), now
        alive = self._jobs.alive(self._elapsed_s)
        self._simpler.priority = "future" if alive else "historic"
        self._simpler.refresh(now)
        self._plans.merge(alive)
        told = [each for each in alive if self._plans.is_trusted(each)]
        untold = [each for each in alive if not self._plans.is_trusted(each)]
        self._follows = bool(told)
        self._planned = frozenset(bucket for each in told for bucket in each.buckets)
        self._coming = future(untold, self._history.reads().keys())
        self._past = historic(self._history.requested())
        self._move_threshold(self._elapsed_s - before, len(told))

    def _knows_nothing(self) -> bool:
        """Return whether nobody tells anything, and no bucket was read more than another.

        Then the tier is an LRU.
        """
        return (
            self._allowance is None
            and self._simpler.priority == "historic"
            and not any(priority > self._minimum for priority in self._simpler.priorities.values())
        )

    def _untold_use(self, bucket: Bucket, key: int) -> float:
        """Return the time of a next use that no plan tells."""
        soonest = self._untold(bucket, key)
        if soonest < math.inf:
            self._remember(key, bucket)
        return soonest

    def _untold(self, bucket: Bucket, key: int) -> float:
        """Return a time for the next use by jobs that tell no order, spread over an hour."""
        priority = self._coming.get(bucket, 0.0)
        if bucket not in self._planned:
            priority = max(priority, self._past.get(bucket, 0.0))
        if priority <= self._minimum:
            return math.inf
        return self._now + UNTOLD_EPOCH_S * spread(key) / priority

    def _remember(self, key: int, bucket: Bucket) -> None:
        if len(self._buckets) >= _REMEMBERED:
            self._buckets = {}
        self._buckets[key] = bucket

    def _may_write(self, key: int, soonest: float, length: int) -> bool:
        """Return whether the write budget has room for a segment with that next use.

        As in `ThresholdPolicy` the threshold is soft, and all jobs agree about the segments: of
        those with few uses to come it admits the ones with the lowest keys.
        """
        if self._allowance is None:
            return True
        count = 0 if soonest == math.inf else max(1, self._plans.uses.coming(key))
        if key & _KEY_MASK >= (count + 1 - self._threshold) * (_KEY_MASK + 1):
            return False
        self._wanted_bytes += length
        return self._allowance.permits()

    def _move_threshold(self, seconds: float, most_uses: int) -> None:
        if self._controller is None or self._allowance is None:
            return
        self._allowance.grow(seconds)
        if seconds > 0:
            self._threshold = self._controller.threshold(self._wanted_bytes, seconds, most_uses + 1)
            self._wanted_bytes = 0
