"""Tectonic-Shift's policies: buckets above a threshold are admitted, and reinserted.

The threshold is soft. While the write budget raises it from a bucket's priority to one above, the
bucket gives up ever more of its segments, chosen by their keys. So the threshold has an effect
between the few priorities there are. All jobs agree about the segments that are left: the first one
that reads such a segment writes it, and all others hit it. Segments chosen by chance or by time
would be written by the last reader as often as by the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from chunkstore.ssd.policies.elapsed import Elapsed
from chunkstore.ssd.policies.job_specifications import JobSpecification, PublishedJobs
from chunkstore.ssd.policies.priority import Priorities, Priority, future, historic, hybrid
from chunkstore.ssd.policies.request_history import RequestHistory
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policies.write_budget import ThresholdController, WriteAllowance

MINIMUM: Final = 1.1
"""The least admit threshold (Tectonic-Shift §6.1): a bucket read once, by one job, is refused."""
_KEY_MASK: Final = 0xFFFF


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
        self.priority = priority
        """The kind of priority; a change counts from the next refresh on."""
        self._minimum = minimum
        self._history = history or RequestHistory()
        self._jobs = PublishedJobs()
        self._refreshed_s = self._history.elapsed_s
        self._elapsed = Elapsed(self._refreshed_s)
        self.admit_threshold = minimum
        self._reinsertion_offset = reinsertion_offset
        self._controller: ThresholdController | None = None
        self._allowance: WriteAllowance | None = None
        if write_budget is not None:
            self._controller = ThresholdController(write_budget, minimum)
            self._allowance = WriteAllowance(write_budget)
        self._wanted_bytes = 0
        self.priorities: Priorities = {}
        """The priorities of the last refresh, for explanations."""
        self._admitted: Mapping[Bucket, int] = {}
        self._reinserted: Mapping[Bucket, int] = {}

    def requested(self, job: str, bucket: Bucket, key: int, length: int) -> None:
        """Add the request to the history window."""
        self._history.add(job, bucket, key, length)

    def admits(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return whether the bucket is above the threshold and the write budget has room."""
        return key & _KEY_MASK < self._admitted.get(bucket, 0) and self._may_write(length)

    def reinserts(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return whether the bucket is above the reinsertion threshold, within the budget."""
        return key & _KEY_MASK < self._reinserted.get(bucket, 0) and self._may_write(length)

    def next_uses(self, keys: Sequence[int]) -> None:
        """Return None: priorities are of whole buckets."""

    def evicts_next(self, next_use: float | None) -> None:
        """Do nothing: the order of eviction is the tier's."""

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
        self.priorities = priorities = self._priorities(elapsed_s)
        self._move_threshold(elapsed_s - self._refreshed_s, max(priorities.values(), default=0.0))
        self._refreshed_s = elapsed_s
        self._admitted = self._limits(priorities, 0.0)
        if self._reinsertion_offset is not None:
            self._reinserted = self._limits(priorities, self._reinsertion_offset)

    def _limits(self, priorities: Priorities, offset: float) -> Mapping[Bucket, int]:
        """Return below which number the low bits of a key must be, for each admitted bucket."""
        minimum, threshold = self._minimum + offset, self.admit_threshold + offset
        return {
            bucket: int(min(1.0, priority + 1 - threshold) * (_KEY_MASK + 1))
            for bucket, priority in priorities.items()
            if priority > minimum and priority + 1 > threshold
        }

    def _priorities(self, elapsed_s: float) -> Priorities:
        """Return the priorities; *future* is *historic* while no job tells anything."""
        jobs = () if self.priority == "historic" else self._jobs.alive(elapsed_s)
        coming = future(jobs, self._history.reads().keys())
        if self.priority == "future" and jobs:
            return coming
        return hybrid(historic(self._history.requested()), coming)

    def _move_threshold(self, seconds: float, highest: float) -> None:
        if self._controller is None or self._allowance is None:
            return
        self._allowance.grow(seconds)
        if seconds > 0:
            self.admit_threshold = self._controller.threshold(
                self._wanted_bytes, seconds, highest + 1
            )
            self._wanted_bytes = 0
