"""Tectonic-Shift's policies: buckets above a threshold are admitted, and reinserted."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Final

from chunkstore.ssd.policies.elapsed import Elapsed
from chunkstore.ssd.policies.history import RequestHistory
from chunkstore.ssd.policies.jobs import JobSpecification, PublishedJobs
from chunkstore.ssd.policies.priority import Priorities, Priority, future, historic, hybrid
from chunkstore.ssd.policies.tags import Bucket
from chunkstore.ssd.policies.write_budget import ThresholdController, WriteAllowance

MINIMUM: Final = 1.1
"""The least admit threshold (Tectonic-Shift §6.1): a bucket read once, by one job, is refused."""


class ThresholdPolicy:
    """A policy that admits the buckets whose priority is above a threshold."""

    fetches_rejected = False

    def __init__(
        self,
        priority: Priority,
        *,
        minimum: float = MINIMUM,
        write_budget: float | None = None,
        reinsertion_offset: float | None = None,
        history: RequestHistory | None = None,
    ) -> None:
        """`write_budget` is in bytes a second; `reinsertion_offset` None: reinsert nothing."""
        if not (math.isfinite(minimum) and minimum > 0):
            raise ValueError(f"an admit threshold of {minimum}; it must be positive")
        if reinsertion_offset is not None and not (
            math.isfinite(reinsertion_offset) and reinsertion_offset >= 0
        ):
            raise ValueError(f"a reinsertion offset of {reinsertion_offset}; it must not be < 0")
        self._priority = priority
        self._history = history or RequestHistory()
        self._jobs = PublishedJobs()
        self._elapsed = Elapsed()
        self._refreshed_s = 0.0
        self.admit_threshold = minimum
        self._reinsertion_offset = reinsertion_offset
        self._controller: ThresholdController | None = None
        self._allowance: WriteAllowance | None = None
        if write_budget is not None:
            self._controller = ThresholdController(write_budget, minimum)
            self._allowance = WriteAllowance(write_budget)
        self._wanted_bytes = 0
        self._admitted: Set[Bucket] = frozenset()
        self._reinserted: Set[Bucket] = frozenset()

    def requested(self, job: str, bucket: Bucket, key: int, length: int) -> None:
        """Add the request to the history window."""
        self._history.add(job, bucket, key, length)

    def admits(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return whether the bucket is above the threshold and the write budget has room."""
        return bucket in self._admitted and self._may_write(length)

    def reinserts(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return whether the bucket is above the reinsertion threshold, within the budget."""
        return bucket in self._reinserted and self._may_write(length)

    def _may_write(self, length: int) -> bool:
        self._wanted_bytes += length
        return self._allowance is None or self._allowance.permits()

    def written(self, length: int) -> None:
        """Take the bytes from the write allowance."""
        if self._allowance is not None:
            self._allowance.take(length)

    def publish(self, specification: JobSpecification, now: float) -> None:
        """Record the job's specification until its lease ends."""
        self._jobs.publish(specification, self._elapsed.at(now))

    def refresh(self, now: float) -> None:
        """Move the window, compute all priorities, and compare them with the thresholds."""
        elapsed_s = self._elapsed.at(now)
        self._history.advance(elapsed_s)
        priorities = self._priorities(elapsed_s)
        self._move_threshold(elapsed_s - self._refreshed_s, max(priorities.values(), default=0.0))
        self._refreshed_s = elapsed_s
        self._admitted = _above(self.admit_threshold, priorities)
        if self._reinsertion_offset is not None:
            threshold = self.admit_threshold + self._reinsertion_offset
            self._reinserted = _above(threshold, priorities)

    def _priorities(self, elapsed_s: float) -> Priorities:
        past: Priorities = {}
        coming: Priorities = {}
        if self._priority != "future":
            past = historic(self._history.requested())
        if self._priority != "historic":
            coming = future(self._jobs.alive(elapsed_s), self._history.reads().keys())
        return hybrid(past, coming)

    def _move_threshold(self, seconds: float, highest: float) -> None:
        if self._controller is None or self._allowance is None:
            return
        self._allowance.grow(seconds)
        if seconds > 0:
            self.admit_threshold = self._controller.threshold(self._wanted_bytes, seconds, highest)
            self._wanted_bytes = 0


def _above(threshold: float, priorities: Priorities) -> Set[Bucket]:
    return frozenset(bucket for bucket, priority in priorities.items() if priority > threshold)
